/* SPDX-License-Identifier: MIT
 * Prints the path of a transfer and the reasons against the others: before the transfer
 * (haul_explain), and from the reports of two transfers (haul_transfer_report).
 *
 *   explain_path [ADDRESS NAME]    region NAME of a running node, or of a child process */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <haul/haul.h>

#define LENGTH ((size_t)16 << 20)

static void check(int code) {
  const struct haul_error *error = haul_error_last();
  if (code >= 0)
    return;
  fprintf(stderr, "%s: %s: %s\nhint: %s\n", error->call, error->object, error->text, error->hint);
  exit(1);
}

/* Publishes device memory in a child process, writes its address to `out`, and ends when `in`
 * closes. */
static int serve(int out, int in) {
  haul_node *node;
  haul_region *region;
  char address[128] = "";
  check(haul_node_open(NULL, &node));
  check(haul_region_alloc(node, (struct haul_place){HAUL_SIM, 0}, LENGTH, 0, &region));
  check(haul_region_publish(region, "block", HAUL_READ | HAUL_WRITE));
  check(haul_node_listen(node, "tcp://127.0.0.1:0"));
  check(haul_node_address(node, 0, address, sizeof address));
  if (write(out, address, sizeof address) == sizeof address && read(in, address, 1) < 0)
    return 1;
  haul_region_release(region);
  haul_node_close(node);
  return 0;
}

static void explain(haul_region *local, haul_remote *remote) {
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  check(haul_explain(local, remote, HAUL_OP_WRITE, haul_region_length(local), NULL, paths, &count));
  for (size_t i = 0; i < count; i++)
    printf("%-4s %-6s %8.3f ms  %s%s%s\n", paths[i].name,
           paths[i].chosen ? "chosen"
           : paths[i].open ? "open"
                           : "closed",
           paths[i].cost_ns / 1e6, paths[i].detail, paths[i].reason[0] ? "; " : "",
           paths[i].reason);
}

static void transfer(haul_region *local, haul_remote *remote, const char *only) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece all = {0, 0, haul_region_length(local)};
  struct haul_report report = HAUL_REPORT_INIT;
  haul_transfer *transfer;
  char text[4096];
  options.only = only;
  check(haul_write(remote, local, &all, 1, &options, &transfer));
  check(haul_transfer_wait(transfer, HAUL_FOREVER));
  check(haul_transfer_report(transfer, &report));
  haul_report_format(&report, text, sizeof text);
  printf("\n%s", text);
  haul_transfer_release(transfer);
}

int main(int count, char **arguments) {
  const char *name = count == 3 ? arguments[2] : "block";
  char own[128] = "", *address = count == 3 ? arguments[1] : own;
  int to[2], from[2], status = 0;
  haul_node *node;
  haul_peer *peer;
  haul_remote *remote;
  haul_region *local;
  const struct haul_place host = {HAUL_HOST, 0};
  if (pipe(to) != 0 || pipe(from) != 0)
    return 1;
  if (count != 3 && fork() == 0) /* before a node is opened: a child cannot use it */
    return close(to[1]) || serve(from[1], to[0]);
  if (count != 3 && read(from[0], own, sizeof own) <= 0)
    return 1;
  check(haul_node_open(NULL, &node));
  check(haul_peer_connect(node, address, haul_deadline_in(5 * HAUL_SECOND), &peer));
  check(haul_peer_lookup(peer, name, haul_deadline_in(5 * HAUL_SECOND), &remote));
  check(haul_region_alloc(node, host, haul_remote_length(remote), 0, &local));
  explain(local, remote);
  transfer(local, remote, NULL);
  transfer(local, remote, "tcp");
  haul_region_release(local);
  haul_remote_release(remote);
  haul_peer_close(peer);
  haul_node_close(node);
  close(to[1]); /* ends the other process */
  return count != 3 && (wait(&status) < 0 || status != 0);
}
