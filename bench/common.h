/* SPDX-License-Identifier: MIT
 * Shared by the bench programs. Each prints a figure on stdout, and perhaps the CPU seconds a GB.
 */
#ifndef HAUL_BENCH_COMMON_H
#define HAUL_BENCH_COMMON_H

#include <haul/haul.h>
#include <stdint.h>
#include <sys/types.h>

/* Exits with the library's last error if `code` is negative. */
void must(int code, const char *what);
/* Exits with errno unless `condition` holds. */
void need(int condition, const char *what);

int64_t now_ns(void);

#define DEPTH_MAX 256 /* transfers in flight */

/* A span of a throughput bench, with the CPU time of this process and of `other`, the second one of
 * the bench; 0: there is none. meter_end prints GB/s and CPU seconds a GB; "-" for the latter where
 * another command starts the second process (HAUL_BENCH_ON). */
struct meter {
  pid_t other;
  int64_t began, cpu;
};
struct meter meter_begin(pid_t other);
void meter_end(const struct meter *meter, uint64_t bytes);
/* CPU time over time, until now. */
double meter_busy(const struct meter *meter);

/* A node that polls for `spin_ns` before it sleeps, like in low-latency programs. `thread`: with a
 * progress thread. */
haul_node *open_node(int thread, int64_t spin_ns);
#define SPIN_NS 50000 /* for most benches */

/* Starts the second process of a bench: this program with its arguments and "--serve", through the
 * command in HAUL_BENCH_ON ("on b"), if set. Returns its pid; reads its address into `line`.
 * end_child kills and reaps it. */
pid_t start_child(int argc, char **argv, char *line, size_t size);
void end_child(pid_t child);
/* In the child: prints the line; the child then dies with the parent. */
void say_line(const char *line);
int is_child(int argc, char **argv);

/* HAUL_BENCH_LISTEN, else loopback, for "map" a Unix socket. */
const char *listen_address(const char *path);

/* A region of `length` bytes with value `value`. */
haul_region *make_region(haul_node *node, const char *place, uint64_t length, int value,
                         unsigned flags);

/* Main function of a child: publishes a region "target" of `length` bytes for the parent, or only
 * for the identity in HAUL_BENCH_GRANT. */
_Noreturn void serve_target(const char *path, const char *place, uint64_t length);

/* Sorts the values. */
double median_of(double *values, size_t count);

/* The place at the other end of segment `index` of `count`: neighbours here are none there, as in a
 * paged cache of keys and values. */
uint64_t scattered(uint64_t index, uint64_t count);

/* For example "64M". */
uint64_t parse_size(const char *text);

#endif
