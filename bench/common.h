/* SPDX-License-Identifier: MIT
 * What the bench programs share. Each prints one number on standard output and nothing else. */
#ifndef HAUL_BENCH_COMMON_H
#define HAUL_BENCH_COMMON_H

#include <haul/haul.h>
#include <stdint.h>
#include <sys/types.h>

/* Ends the program with the library's last error when `code` is one. */
void must(int code, const char *what);
/* Ends the program with errno when `condition` does not hold. */
void need(int condition, const char *what);

int64_t now_ns(void);

/* A node that polls for a while before it sleeps, as a latency-minded user would set it. `thread`:
 * with its own progress thread. */
haul_node *open_node(int thread, int64_t spin_ns);
#define SPIN_NS 50000 /* the while, for most */

/* The second process of a bench: this program again, with its arguments and "--serve" behind them,
 * and before them what HAUL_BENCH_ON says, a command that runs another in its own place somewhere
 * else ("on b"). Returns its process id; reads one line from it (its address) into `line`.
 * end_child ends it and reaps it. */
pid_t start_child(int argc, char **argv, char *line, size_t size);
void end_child(pid_t child);
/* In the child: says the line, then is killed with the parent. */
void say_line(const char *line);
int is_child(int argc, char **argv);

/* Where to listen for it: what HAUL_BENCH_LISTEN says, else loopback, for "map" a Unix socket. */
const char *listen_address(const char *path);

/* A region of `length` bytes at the place, each of them `value`. */
haul_region *make_region(haul_node *node, const char *place, uint64_t length, int value,
                         unsigned flags);

/* The child's whole part: a region of `length` bytes at the place, "target", which the parent may
 * read and write over the path; for the identity alone that HAUL_BENCH_GRANT names, if it does. */
_Noreturn void serve_target(const char *path, const char *place, uint64_t length);

/* "64M" and the like. */
uint64_t parse_size(const char *text);

#endif
