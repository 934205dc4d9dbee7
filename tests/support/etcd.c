/* SPDX-License-Identifier: MIT */
#include "support/etcd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/check.h"
#include "support/child.h"
#include "support/tree.h"

bool etcd_is_installed(void) {
  return system("command -v etcd >/dev/null") == 0;
}

static struct sockaddr_in loopback(unsigned short port) {
  return (struct sockaddr_in){
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static unsigned short free_port(void) {
  struct sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
  getsockname(fd, (struct sockaddr *)&address, &length);
  close(fd);
  return ntohs(address.sin_port);
}

/* Sends a request and reads the start of the response; false: no connection. */
static bool post(unsigned short port, const char *path, const char *body, char *response,
                 size_t size) {
  struct sockaddr_in address = loopback(port);
  char request[2048];
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct timeval minute = {60, 0}; /* a password's hash takes a busy machine seconds */
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof minute);
  snprintf(
      request, sizeof request,
      "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
      path, strlen(body), body);
  ssize_t got = -1;
  if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
      send(fd, request, strlen(request), MSG_NOSIGNAL) == (ssize_t)strlen(request))
    got = recv(fd, response, size - 1, 0);
  close(fd);
  response[got > 0 ? got : 0] = '\0';
  return got > 0;
}

static void wait_ready(const struct etcd *etcd) {
  char response[512];
  for (int i = 0; i < 400; i++) {
    if (post(etcd->port, "/v3/kv/range", "{\"key\":\"YQ==\"}", response, sizeof response) &&
        (strstr(response, " 200 ") || strstr(response, "user name is empty")))
      return;
    nanosleep(&(struct timespec){0, 50000000}, NULL);
  }
  fail_msg("etcd does not respond on port %u", etcd->port);
}

static void exec_etcd(const struct etcd *etcd) {
  char data[96], clients[128], peers[64], cluster[80], files[3][128];
  snprintf(data, sizeof data, "%s/data", etcd->folder);
  int length = snprintf(clients, sizeof clients, "http://127.0.0.1:%u", etcd->port);
  if (etcd->certificates)
    snprintf(clients + length, sizeof clients - (size_t)length, ",https://127.0.0.1:%u",
             etcd->secure_port);
  snprintf(peers, sizeof peers, "http://127.0.0.1:%u", etcd->peer_port);
  snprintf(cluster, sizeof cluster, "default=%s", peers);
  for (int i = 0; i < 3; i++) {
    static const char *const options[] = {"--cert-file=", "--key-file=", "--trusted-ca-file="};
    static const char *const names[] = {"server.pem", "server.key", "ca.pem"};
    snprintf(files[i], sizeof files[i], "%s%s/%s", options[i],
             etcd->certificates ? etcd->certificates : "", names[i]);
  }
  const char *arguments[] = {"etcd",
                             "--data-dir",
                             data,
                             "--listen-client-urls",
                             clients,
                             "--advertise-client-urls",
                             clients,
                             "--listen-peer-urls",
                             peers,
                             "--initial-advertise-peer-urls",
                             peers,
                             "--initial-cluster",
                             cluster,
                             "--unsafe-no-fsync",
                             etcd->certificates ? "--client-cert-auth" : NULL,
                             files[0],
                             files[1],
                             files[2],
                             NULL};
  int log = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(log, 1);
  dup2(log, 2);
  execvp("etcd", (char *const *)(uintptr_t)arguments);
  _exit(127);
}

static void launch(struct etcd *etcd) {
  /* The kernel sends the signal when the thread that forked ends. */
  bool outlives = syscall(SYS_gettid) != getpid();
  etcd->pid = fork();
  assert_true(etcd->pid >= 0);
  if (etcd->pid == 0) {
    if (!outlives)
      prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when the test aborts */
    exec_etcd(etcd);
  }
  wait_ready(etcd);
}

void etcd_start(struct etcd *etcd) {
  snprintf(etcd->folder, sizeof etcd->folder, "/tmp/haul-etcd-XXXXXX");
  assert_non_null(mkdtemp(etcd->folder));
  etcd->port = free_port();
  etcd->peer_port = free_port();
  etcd->secure_port = free_port();
  snprintf(etcd->directory, sizeof etcd->directory, "etcd://127.0.0.1:%u/test", etcd->port);
  launch(etcd);
}

void etcd_start_again(struct etcd *etcd, bool empty) {
  char data[96];
  snprintf(data, sizeof data, "%s/data", etcd->folder);
  if (empty)
    tree_remove(data);
  launch(etcd);
}

void etcd_stop(const struct etcd *etcd) {
  child_stop(etcd->pid);
}

void etcd_go_on(const struct etcd *etcd) {
  kill(etcd->pid, SIGCONT);
}

void etcd_kill(struct etcd *etcd) {
  if (etcd->pid <= 0)
    return;
  kill(etcd->pid, SIGKILL);
  waitpid(etcd->pid, NULL, 0);
  etcd->pid = 0;
}

void etcd_remove(struct etcd *etcd) {
  etcd_kill(etcd);
  tree_remove(etcd->folder);
}

static void base64(const char *bytes, char *text) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t left = strlen(bytes); left > 0; left -= left < 3 ? left : 3, bytes += 3) {
    unsigned group = (unsigned)(unsigned char)bytes[0] << 16;
    group |= left > 1 ? (unsigned)(unsigned char)bytes[1] << 8 : 0;
    group |= left > 2 ? (unsigned char)bytes[2] : 0;
    *text++ = letters[group >> 18];
    *text++ = letters[group >> 12 & 63];
    *text++ = left > 1 ? letters[group >> 6 & 63] : '=';
    *text++ = left > 2 ? letters[group & 63] : '=';
  }
  *text = '\0';
}

bool etcd_ask(const struct etcd *etcd, const char *path, const char *body) {
  char response[1024];
  return post(etcd->port, path, body, response, sizeof response) && strstr(response, " 200 ");
}

void etcd_put(const struct etcd *etcd, const char *key, const char *value) {
  char key64[512], value64[1024], body[1600];
  base64(key, key64);
  base64(value, value64);
  snprintf(body, sizeof body, "{\"key\":\"%s\",\"value\":\"%s\"}", key64, value64);
  assert_true(etcd_ask(etcd, "/v3/kv/put", body));
}
