/* SPDX-License-Identifier: MIT
 * Wrong uses of the library. Prints each call, and what haul_error_last has after it, in the form
 * of calls.txt. */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <haul/access.h>
#include <haul/device.h>
#include <haul/directory.h>
#include <haul/file.h>
#include <haul/log.h>
#include <haul/stats.h>
#include <haul/world.h>

static haul_node *node;                         /* of this process; connects to itself */
static haul_peer *peer, *dead;                  /* the node itself; a process that was killed */
static haul_remote *remote, *fixed;             /* "data" and "fixed" */
static haul_region *region, *small, *read_only; /* 64 KiB and 8 bytes of host memory; a file */
static haul_transfer *transfer;                 /* has ended */
static const struct haul_place host = {HAUL_HOST, 0};

/* Results, whose values do not matter. */
static haul_node *new_node;
static haul_region *new_region;
static haul_peer *new_peer;
static haul_remote *new_remote;
static haul_file *new_file;
static haul_copy *new_copy;
static haul_world *new_world;
static haul_directory *new_walk;
static size_t none = 0, some = 4;
static int descriptor;
static char text[160];

static const struct haul_piece four_bytes = {0, 0, 4}, no_bytes = {0, 0, 0}, beyond = {0, 65536, 1},
                               wraps = {0, UINT64_MAX, 4}, not_ours = {65535, 0, 2};

static void must(int code, const char *what) {
  if (code == 0)
    return;
  printf("cannot %s: %s: %s\n", what, haul_error_last()->object, haul_error_last()->text);
  exit(1);
}

/* The detail belongs to this call and this code. */
static void print_wrong(const char *use, int code) {
  const struct haul_error *error = haul_error_last();
  size_t name = strlen(error->call);
  bool fits =
      code == error->code && name > 0 && strncmp(use, error->call, name) == 0 && use[name] == '(';
  printf("%s\n%s: %s%s%s%s\nhint: %s\n\n", use, haul_error_name(code), error->text,
         *error->object ? " (" : "", error->object, *error->object ? ")" : "", error->hint);
  if (!fits)
    printf("haul_error_last() has the code %d of %s\n", error->code, error->call);
  fflush(stdout);
}

#define WRONG(call) print_wrong(#call, call)

static void take_line(void *user, const struct haul_log_line *line) {
  (void)user, (void)line;
}

static void done(void *user, haul_transfer *ended) {
  (void)user, (void)ended;
}

#define WITH(field, value)                                                                         \
  &(struct haul_node_config) {                                                                     \
    .size = sizeof(struct haul_node_config), .field = value                                        \
  }
#define OPTIONS(field, value)                                                                      \
  &(struct haul_transfer_options) {                                                                \
    .size = sizeof(struct haul_transfer_options), .field = value                                   \
  }

static void open_nodes(void) {
  WRONG(haul_node_open(NULL, NULL));
  WRONG(haul_node_open(&(struct haul_node_config){0}, &new_node));
  WRONG(haul_node_open(WITH(name, "two words"), &new_node));
  WRONG(haul_node_open(WITH(progress, 7), &new_node));
  WRONG(haul_node_open(WITH(spin_ns, -5), &new_node));
  WRONG(haul_node_open(WITH(tcp_rails, 17), &new_node));
  WRONG(haul_node_open(WITH(staging_bytes, 4096), &new_node));
  WRONG(haul_node_open(WITH(paths, "pigeon"), &new_node));
  WRONG(haul_node_open(WITH(key, "missing.key"), &new_node));
  WRONG(haul_node_open(WITH(key, "open.key"), &new_node));
  WRONG(haul_node_open(WITH(certificate, "node.pem"), &new_node));
  WRONG(haul_node_listen(NULL, "tcp://127.0.0.1:0"));
  WRONG(haul_node_listen(node, NULL));
  WRONG(haul_node_listen(node, "127.0.0.1"));
  WRONG(haul_node_listen(node, "tcp://0.0.0.0:0"));
  WRONG(haul_node_listen(node, "tcp://127.0.0.1:70000"));
  WRONG(haul_node_address(node, 9, text, sizeof text));
  WRONG(haul_node_address(node, 0, text, 4));
  WRONG(haul_setting_list(NULL, NULL, &some));
  WRONG(haul_log_set(9, take_line, NULL));
  WRONG(haul_world_join(node, HAUL_FOREVER, &new_world));
}

static void make_regions(void) {
  struct haul_place place;
  struct haul_ticket ticket = {{0}};
  WRONG(haul_place_parse("moon:0", &place));
  WRONG(haul_place_parse("sim:-1", &place));
  WRONG(haul_region_alloc(node, host, 0, 0, &new_region));
  WRONG(haul_region_alloc(node, host, SIZE_MAX, 0, &new_region));
  WRONG(haul_region_alloc(node, host, 4096, 128, &new_region));
  WRONG(haul_region_alloc(node, host, 4096, 0, NULL));
  WRONG(haul_region_alloc(node, (struct haul_place){HAUL_SIM, 9}, 4096, 0, &new_region));
  WRONG(haul_region_alloc(node, (struct haul_place){77, 0}, 4096, 0, &new_region));
  WRONG(haul_region_wrap(node, text, 0, &new_region));
  WRONG(haul_region_wrap(node, text, SIZE_MAX, &new_region));
  WRONG(haul_region_wrap(node, NULL, 4096, &new_region));
  WRONG(haul_region_wrap_file(node, -1, 0, 4096, &new_region));
  WRONG(haul_region_wrap_file(node, descriptor, 4, 4, &new_region));
  WRONG(haul_region_publish(region, "two words", HAUL_READ));
  WRONG(haul_region_publish(region, "data", HAUL_READ));
  WRONG(haul_region_publish(region, "more", 0));
  WRONG(haul_region_publish(region, "more", HAUL_READ | HAUL_LEND));
  WRONG(haul_region_publish_to(region, "more", NULL, 0));
  WRONG(haul_region_unpublish(region, "more"));
  WRONG(haul_region_export(region, HAUL_WRITE, NULL, &ticket, &descriptor));
  WRONG(haul_region_import(node, &ticket, -1, &new_region));
  WRONG(haul_region_dpdk_unregister(region));
}

static void copy_regions(void) {
  WRONG(haul_copy_start(region, 0, small, 0, 0, &new_copy));
  WRONG(haul_region_copy(region, 0, small, 0, 9, HAUL_FOREVER));
  WRONG(haul_region_copy(region, UINT64_MAX, small, 0, 8, HAUL_FOREVER));
  WRONG(haul_region_copy(region, 0, region, 4, 8, HAUL_FOREVER));
  WRONG(haul_file_open(-1, &new_file));
}

static void find_peers(void) {
  WRONG(haul_peer_connect(node, NULL, HAUL_FOREVER, &new_peer));
  WRONG(haul_peer_connect(node, "unix://@nobody-listens-here", HAUL_FOREVER, &new_peer));
  WRONG(haul_peer_connect(node, "http://127.0.0.1", HAUL_FOREVER, &new_peer));
  WRONG(haul_peer_lookup(peer, "none", HAUL_FOREVER, &new_remote));
  WRONG(haul_peer_lookup(peer, "", HAUL_FOREVER, &new_remote));
  WRONG(haul_peer_lookup(NULL, "data", HAUL_FOREVER, &new_remote));
  WRONG(haul_peer_list(peer, HAUL_FOREVER, NULL, &some));
  WRONG(haul_peer_lookup(dead, "data", HAUL_FOREVER, &new_remote));
  WRONG(haul_peer_status(dead));
  WRONG(haul_directory_open(node, "etcd://127.0.0.1", HAUL_FOREVER, &new_walk));
}

static void transfer_bytes(void) {
  WRONG(haul_write(NULL, region, &four_bytes, 1, NULL, NULL));
  WRONG(haul_write(remote, NULL, &four_bytes, 1, NULL, NULL));
  WRONG(haul_write(remote, region, &four_bytes, 0, NULL, NULL));
  WRONG(haul_write(remote, region, &no_bytes, 1, NULL, NULL));
  WRONG(haul_write(remote, region, &beyond, 1, NULL, NULL));
  WRONG(haul_write(remote, region, &wraps, 1, NULL, NULL));
  WRONG(haul_write(remote, region, &not_ours, 1, NULL, NULL));
  WRONG(haul_write(fixed, region, &four_bytes, 1, NULL, NULL));
  WRONG(haul_read(read_only, remote, &four_bytes, 1, NULL, NULL));
  WRONG(haul_write(remote, region, &four_bytes, SIZE_MAX, NULL, NULL));
  WRONG(haul_write(remote, region, &four_bytes, 1, OPTIONS(flags, 1u << 30), NULL));
  WRONG(haul_write(remote, region, &four_bytes, 1, OPTIONS(only, "pigeon"), NULL));
  WRONG(haul_write(remote, region, &four_bytes, 1, &(struct haul_transfer_options){0}, NULL));
  WRONG(haul_write(remote, region, &four_bytes, 1, OPTIONS(priority, 9), NULL));
  WRONG(haul_write(remote, region, &four_bytes, 1, OPTIONS(done, done), NULL));
  WRONG(haul_write(remote, region, &four_bytes, 1, OPTIONS(after, text), NULL));
  WRONG(haul_fetch_add(region, 0, remote, 4, 1, NULL, NULL));
  WRONG(haul_fetch_add(region, 0, remote, 65536, 1, NULL, NULL));
  WRONG(haul_compare_swap(region, 0, fixed, 0, 0, 1, NULL, NULL));
  WRONG(haul_fetch_add(region, 0, remote, 0, 1, OPTIONS(flags, HAUL_CHECKSUM), NULL));
  WRONG(haul_transfer_test(NULL));
  WRONG(haul_transfer_wait(NULL, HAUL_FOREVER));
  WRONG(haul_transfer_report(transfer, &(struct haul_report){0}));
  WRONG(haul_explain(region, remote, 9, 4096, NULL, NULL, &none));
  WRONG(haul_explain(region, remote, HAUL_OP_FETCH_ADD, 4096, NULL, NULL, &none));
}

static void send_messages(void) {
  struct haul_message message;
  WRONG(haul_message_send(peer, 0, text, HAUL_MESSAGE_MAX + 1, HAUL_FOREVER));
  WRONG(haul_message_send(peer, 0, NULL, 4, HAUL_FOREVER));
  WRONG(haul_message_send(dead, 0, text, 4, HAUL_FOREVER));
  WRONG(haul_message_receive(node, &message, HAUL_NO_WAIT));
  WRONG(haul_message_receive(node, NULL, HAUL_NO_WAIT));
  WRONG(haul_message_offer(peer, 0, region, 65536, 4, HAUL_FOREVER));
  WRONG(haul_message_offer(peer, 0, region, 0, 0, HAUL_FOREVER));
  WRONG(haul_message_offer(peer, 0, region, 0, 4, HAUL_NO_WAIT));
}

static void read_figures(void) {
  uint64_t value;
  WRONG(haul_counter_read(node, "pool.luck", &value));
  WRONG(haul_counter_read(node, NULL, &value));
  WRONG(haul_check_list(node, NULL, &some));
  WRONG(haul_port_list(node, (struct haul_place){77, 0}, NULL, &none));
}

/* Withdrawn memory, and a node that is closed. */
static void go_on_after_the_end(void) {
  must(haul_region_unpublish(region, "data"), "unpublish");
  WRONG(haul_write(remote, region, &four_bytes, 1, NULL, NULL));
  haul_node_close(node);
  WRONG(haul_write(remote, region, &four_bytes, 1, NULL, NULL));
  WRONG(haul_peer_lookup(peer, "fixed", HAUL_FOREVER, &new_remote));
  WRONG(haul_region_publish(region, "more", HAUL_READ));
  WRONG(haul_message_send(peer, 0, text, 4, HAUL_FOREVER));
  WRONG(haul_peer_status(peer));
}

static void go_on_in_a_fork(void) {
  pid_t child = fork();
  if (child == 0) {
    WRONG(haul_node_listen(node, "tcp://127.0.0.1:0"));
    WRONG(haul_write(remote, region, &four_bytes, 1, NULL, NULL));
    WRONG(haul_node_open(NULL, &new_node));
    _exit(0);
  }
  waitpid(child, NULL, 0);
}

/* A node in a process of its own, which is killed once this one has connected to it. */
static pid_t start_victim(const char *address) {
  int ready[2];
  char byte;
  must(pipe(ready), "make a pipe");
  pid_t child = fork();
  if (child > 0) {
    close(ready[1]);
    must(read(ready[0], &byte, 1) != 1, "start a process");
    close(ready[0]);
    return child;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  must(haul_node_open(WITH(name, "victim"), &node), "open a node");
  must(haul_node_listen(node, address), "listen");
  must(write(ready[1], "", 1) != 1, "notify");
  for (;;)
    pause();
}

static void prepare(void) {
  char folder[PATH_MAX], victim[PATH_MAX + 16], self[PATH_MAX + 16];
  must(!getcwd(folder, sizeof folder), "find the folder");
  snprintf(victim, sizeof victim, "unix://%s/victim", folder);
  snprintf(self, sizeof self, "unix://%s/self", folder);
  pid_t child = start_victim(victim);
  descriptor = open("file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  must(descriptor < 0 || write(descriptor, "haul", 4) != 4, "write a file");
  must(haul_key_new("open.key", "haul"), "make a key");
  must(chmod("open.key", 0644), "open the key to others");
  must(haul_node_open(WITH(name, "node"), &node), "open a node");
  must(haul_node_listen(node, self), "listen");
  must(haul_region_alloc(node, host, 65536, 0, &region), "allocate");
  must(haul_region_alloc(node, host, 8, 0, &small), "allocate");
  must(haul_region_wrap_file(node, descriptor, 0, 4, &read_only), "wrap a file");
  memset(haul_region_address(region), 0, 65536);
  must(haul_region_publish(region, "data", HAUL_READ | HAUL_WRITE), "publish");
  must(haul_region_publish(region, "fixed", HAUL_READ), "publish");
  must(haul_peer_connect(node, victim, HAUL_FOREVER, &dead), "connect");
  must(haul_peer_connect(node, self, HAUL_FOREVER, &peer), "connect");
  must(haul_peer_lookup(peer, "data", HAUL_FOREVER, &remote), "look up");
  must(haul_peer_lookup(peer, "fixed", HAUL_FOREVER, &fixed), "look up");
  must(haul_write(remote, region, &four_bytes, 1, NULL, &transfer), "write");
  must(haul_transfer_wait(transfer, HAUL_FOREVER), "write");
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  while (haul_peer_status(dead) == 0)
    usleep(1000);
}

int main(void) {
  prepare();
  puts("# Wrong uses of the library: the call, its code, the text and (the object) of "
       "haul_error_last(), and the hint.\n"
       "# calls.c has what the variables are.\n");
  open_nodes();
  make_regions();
  copy_regions();
  find_peers();
  transfer_bytes();
  send_messages();
  read_figures();
  go_on_in_a_fork();
  go_on_after_the_end();
  haul_transfer_release(transfer);
  haul_remote_release(remote);
  haul_remote_release(fixed);
  haul_peer_close(peer);
  haul_peer_close(dead);
  haul_region_release(region);
  haul_region_release(small);
  haul_region_release(read_only);
  close(descriptor);
}
