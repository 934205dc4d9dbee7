/* SPDX-License-Identifier: MIT
 * What this host lacks for the path to be fast, and the command that mends it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/check.h"
#include "core/tls/openssl.h"
#include "core/tls/tls.h"
#include "fabric/tcp/tcp.h"

static long read_number(const char *path) {
  char text[32] = "";
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return -1;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  return got > 0 ? strtol(text, NULL, 10) : -1;
}

static void check_buffer(struct haul_check *check, const char *name, const char *limit,
                         long wanted) {
  char path[64];
  check_begin(check, "tcp", name);
  snprintf(path, sizeof path, "/proc/sys/net/core/%s", limit);
  long value = read_number(path);
  if (value < 0) {
    snprintf(check->text, sizeof check->text, "the limit of socket buffers is not readable here");
    return;
  }
  check->state = value >= wanted ? HAUL_CHECK_OK : HAUL_CHECK_LIMITED;
  snprintf(check->text, sizeof check->text, "net.core.%s is %ld bytes%s", limit, value,
           check->state ? ": large writes within this host run below their speed" : "");
  if (check->state)
    snprintf(check->remedy, sizeof check->remedy, "sysctl -w net.core.%s=%ld", limit, wanted);
}

static void check_splice(struct haul_check *check) {
  check_begin(check, "tcp", "splice");
  int system = tcp_try_lending();
  if (system == 0) {
    snprintf(check->text, sizeof check->text, "large writes leave allocated memory by reference");
    return;
  }
  check->state = HAUL_CHECK_LIMITED;
  snprintf(check->text, sizeof check->text, "vmsplice and splice: %s; large writes are copied",
           strerror(system));
  snprintf(check->remedy, sizeof check->remedy,
           system == EMFILE ? "ulimit -n 65536"
                            : "allow pipe2, vmsplice and splice in this sandbox's filter");
}

static void check_tls(struct haul_check *check) {
  check_begin(check, "tcp", "tls");
  if (openssl_open()) {
    check_set(check, HAUL_CHECK_OK, "OpenSSL is there: nodes with a key encrypt");
    return;
  }
  check_set(check, HAUL_CHECK_LIMITED, "%.140s: no node here can have a key",
            haul_error_last()->text);
  check_hint(check, "sudo apt-get install libssl3");
}

static void check_kernel_tls(struct haul_check *check) {
  check_begin(check, "tcp", "kernel-tls");
  bool there = tls_kernel_is_there();
  check_set(check, HAUL_CHECK_OK,
            there ? "the kernel can encrypt for nodes with a key"
                  : "the kernel's module tls is not loaded: processes encrypt");
  if (!there)
    check_hint(check, "sudo modprobe tls");
}

size_t tcp_checks(struct haul_check *checks, size_t room) {
  if (room > 0)
    check_buffer(&checks[0], "send-buffer", "wmem_max", 1 << 20);
  if (room > 1)
    check_buffer(&checks[1], "receive-buffer", "rmem_max", 512 << 10);
  if (room > 2)
    check_splice(&checks[2]);
  if (room > 3)
    check_tls(&checks[3]);
  if (room > 4)
    check_kernel_tls(&checks[4]);
  return 5;
}
