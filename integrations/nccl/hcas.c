/* SPDX-License-Identifier: MIT
 * Devices of NCCL by HCA: each active port of an HCA is one device, in the place of its network
 * interfaces. haul makes connections over IP, and its rails find the HCAs themselves: so an
 * InfiniBand port without an interface has the address of the first. NCCL_IB_HCA selects them as
 * for NCCL's own transport. */
#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

const char *devices_sysfs = "/sys";

#define PATH_ROOM 512

/* "", which does not exist, where it does not fit. */
static __attribute__((format(printf, 2, 3))) void path_of(char path[PATH_ROOM], const char *format,
                                                          ...) {
  va_list arguments;
  va_start(arguments, format);
  int root = snprintf(path, PATH_ROOM, "%s/class/", devices_sysfs);
  int rest = vsnprintf(path + root, (size_t)(PATH_ROOM - root), format, arguments);
  va_end(arguments);
  if (root + rest >= PATH_ROOM)
    path[0] = '\0';
}

static bool read_line(const char *path, char text[64]) {
  FILE *file = fopen(path, "re");
  bool read = file && fgets(text, 64, file);
  if (file)
    fclose(file);
  text[read ? strcspn(text, "\n") : 0] = '\0';
  return read;
}

void write_pci(const char *class_name, const char *name, char pci[PATH_MAX]) {
  char path[PATH_ROOM];
  path_of(path, "%s/%s/device", class_name, name);
  if (!realpath(path, pci) || !strstr(pci, "/pci"))
    pci[0] = '\0';
}

bool read_interface(const char *name, const char *file, char text[64]) {
  char path[PATH_ROOM];
  path_of(path, "net/%s/%s", name, file);
  return read_line(path, text);
}

/* A line of the port's folder. */
static bool read_port(const struct device *hca, const char *file, char text[64]) {
  char path[PATH_ROOM];
  path_of(path, "infiniband/%s/ports/%d/%s", hca->name, hca->port, file);
  return read_line(path, text);
}

static int is_visible(const struct dirent *entry) {
  return entry->d_name[0] != '.';
}

/* The names in a folder, in order; -1: there is none. */
static int list_folder(const char *path, struct dirent ***names) {
  return scandir(path, names, is_visible, versionsort);
}

/* Whether the interface has one of the port's GIDs, as with RoCE, also over VLANs and bonds. */
static bool has_gid(const struct device *hca, const char *interface) {
  char path[PATH_ROOM], file[64 + sizeof "gid_attrs/ndevs/"], text[64];
  struct dirent **list;
  bool found = false;
  path_of(path, "infiniband/%s/ports/%d/gid_attrs/ndevs", hca->name, hca->port);
  int count = list_folder(path, &list);
  for (int i = 0; i < count; i++) {
    snprintf(file, sizeof file, "gid_attrs/ndevs/%.63s", list[i]->d_name);
    found = found || (read_port(hca, file, text) && strcmp(text, interface) == 0);
    free(list[i]);
  }
  if (count >= 0)
    free(list);
  return found;
}

/* Whether the interface is one of the HCA's function and port, as IPoIB, which has no GID. */
static bool has_function(const struct device *hca, const char *interface) {
  char path[PATH_ROOM], text[64];
  path_of(path, "infiniband/%s/device/net/%s/dev_port", hca->name, interface);
  return read_line(path, text) && atoi(text) == hca->port - 1;
}

static void describe(struct device *hca) {
  char path[PATH_ROOM], text[64];
  unsigned word[4] = {0};
  read_port(hca, "rate", text);
  hca->speed = (int)(strtod(text, NULL) * 1000);
  path_of(path, "infiniband/%s/node_guid", hca->name);
  if (read_line(path, text))
    sscanf(text, "%4x:%4x:%4x:%4x", &word[0], &word[1], &word[2], &word[3]);
  hca->guid = (uint64_t)word[0] << 48 | (uint64_t)word[1] << 32 | (uint64_t)word[2] << 16 | word[3];
}

/* Puts the port in the place of its interfaces. */
static unsigned add_port(struct device *hca, struct device *devices, unsigned count,
                         unsigned room) {
  char layer[64];
  unsigned kept = 0, place = room;
  for (unsigned i = 0; i < count; i++) {
    bool own = devices[i].port == 0 &&
               (has_gid(hca, devices[i].name) || has_function(hca, devices[i].name));
    if (own && place < room)
      continue;
    if (own)
      place = kept;
    devices[kept++] = devices[i];
  }
  read_port(hca, "link_layer", layer);
  if (place == room && (strcmp(layer, "InfiniBand") != 0 || kept == room))
    return kept;
  strcpy(hca->address, devices[place < room ? place : 0].address);
  if (place == room)
    place = kept++;
  describe(hca);
  devices[place] = *hca;
  return kept;
}

/* Active, chosen, and hardware: an HCA in software says less than its interface. */
static bool is_usable(struct device *hca) {
  const char *rule = getenv("NCCL_IB_HCA");
  char state[64], name[80];
  write_pci("infiniband", hca->name, hca->pci);
  snprintf(name, sizeof name, "%s:%d", hca->name, hca->port);
  return *hca->pci && read_port(hca, "state", state) && atoi(state) == 4 && /* ACTIVE */
         (!rule || !*rule || is_chosen(hca->name, name, rule));
}

static unsigned add_ports(const char *name, struct device *devices, unsigned count, unsigned room) {
  char path[PATH_ROOM];
  struct device hca = {.port = 0};
  struct dirent **ports;
  path_of(path, "infiniband/%s/ports", name);
  int found = list_folder(path, &ports);
  snprintf(hca.name, sizeof hca.name, "%.63s", name);
  for (int i = 0; i < found; i++) {
    hca.port = atoi(ports[i]->d_name);
    if (hca.port > 0 && is_usable(&hca))
      count = add_port(&hca, devices, count, room);
    free(ports[i]);
  }
  if (found >= 0)
    free(ports);
  return count;
}

unsigned hcas_add(struct device *devices, unsigned count, unsigned room) {
  char path[PATH_ROOM];
  struct dirent **names;
  path_of(path, "infiniband");
  int found = list_folder(path, &names);
  for (int i = 0; i < found; i++) {
    count = add_ports(names[i]->d_name, devices, count, room);
    free(names[i]);
  }
  if (found >= 0)
    free(names);
  return count;
}
