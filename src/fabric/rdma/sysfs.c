/* SPDX-License-Identifier: MIT */
#include "fabric/rdma/sysfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *sysfs_root = "/sys", *device_nodes_root = "/dev/infiniband";
int (*addresses_get)(struct ifaddrs **addresses) = getifaddrs;

struct sysfs_path sysfs_path(const char *format, ...) {
  struct sysfs_path path;
  size_t size = sizeof path.text;
  size_t root = (size_t)snprintf(path.text, size, "%s/", sysfs_root);
  va_list arguments;
  va_start(arguments, format);
  if (root >= size ||
      vsnprintf(path.text + root, size - root, format, arguments) >= (int)(size - root))
    path.text[0] = '\0';
  va_end(arguments);
  return path;
}

bool sysfs_has(struct sysfs_path path) {
  return access(path.text, F_OK) == 0;
}

int sysfs_node_access(const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", device_nodes_root, name);
  return access(path, R_OK | W_OK) == 0 ? 0 : errno;
}

bool sysfs_text(struct sysfs_path path, char *text, size_t size) {
  text[0] = '\0';
  int fd = open(path.text, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  ssize_t got = read(fd, text, size - 1);
  close(fd);
  text[got > 0 ? got : 0] = '\0';
  text[strcspn(text, "\n")] = '\0';
  return got >= 0; /* some attributes exist and refuse to be read */
}

int sysfs_number(struct sysfs_path path, int missing) {
  char text[32], *end;
  if (!sysfs_text(path, text, sizeof text))
    return missing;
  long number = strtol(text, &end, 10);
  return end == text || number < INT_MIN || number > INT_MAX ? missing : (int)number;
}

bool sysfs_real(struct sysfs_path path, char real[PATH_MAX]) {
  char root[PATH_MAX];
  if (!realpath(sysfs_root, root) || !realpath(path.text, real))
    return false;
  size_t length = strlen(root);
  if (strncmp(real, root, length) != 0 || real[length] != '/')
    return false;
  memmove(real, real + length + 1, strlen(real + length + 1) + 1);
  return true;
}

bool sysfs_first(struct sysfs_path folder, bool (*wanted)(const char *name), char *name,
                 size_t size) {
  name[0] = '\0';
  DIR *opened = opendir(folder.text);
  if (!opened)
    return false;
  for (struct dirent *entry; (entry = readdir(opened));) {
    bool fits = entry->d_name[0] != '.' && strlen(entry->d_name) < size;
    if (fits && (!wanted || wanted(entry->d_name)) && (!*name || strcmp(entry->d_name, name) < 0))
      snprintf(name, size, "%s", entry->d_name);
  }
  closedir(opened);
  return *name != '\0';
}

/* The address in a GID, IPv4 behind the 12 bytes of `mapping`; false: of neither IPv4 nor IPv6. */
static bool to_bytes(const struct sockaddr *address, const uint8_t mapping[12], uint8_t bytes[16]) {
  sa_family_t family = address ? address->sa_family : AF_UNSPEC;
  if (family == AF_INET6) {
    memcpy(bytes, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, 16);
  } else if (family == AF_INET) {
    memcpy(bytes, mapping, 12);
    memcpy(bytes + 12, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
  }
  return family == AF_INET6 || family == AF_INET;
}

static int leading_ones(const uint8_t bytes[16]) {
  int count = 0;
  while (count < 128 && bytes[count / 8] & 0x80 >> count % 8)
    count++;
  return count;
}

int addresses_subnet(const struct ifaddrs *addresses, const uint8_t gid[16]) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  static const uint8_t ones[12] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                   0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
  uint8_t bytes[16];
  for (; addresses; addresses = addresses->ifa_next)
    if (!(addresses->ifa_flags & IFF_LOOPBACK) && to_bytes(addresses->ifa_addr, mapped, bytes) &&
        memcmp(bytes, gid, sizeof bytes) == 0)
      return to_bytes(addresses->ifa_netmask, ones, bytes) ? leading_ones(bytes) : 0;
  return -1;
}
