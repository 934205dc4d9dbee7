/* SPDX-License-Identifier: MIT */
#include "node/listen.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"

#define PAUSE_NS   100000000LL   /* between attempts to accept while no descriptor is left */
#define RESOLVE_NS 10000000000LL /* for the resolver, as haul_node_listen promises */

static void on_connection(struct watch *watch, uint32_t events);

static void on_pause_end(struct timer *timer) {
  struct listener *listener = list_entry(timer, struct listener, timer);
  struct loop *loop = listener->node->loop;
  if (loop_watch(loop, &listener->watch, listener->fd, EPOLLIN, on_connection) != 0)
    loop_timer_start(loop, timer, clock_now() + PAUSE_NS);
}

static void on_connection(struct watch *watch, uint32_t events) {
  struct listener *listener = list_entry(watch, struct listener, watch);
  (void)events;
  int fd = sock_accept(listener->fd);
  if (fd >= 0) {
    accept_start(listener, fd);
  } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
    log_write(
        &listener->node->fabric.log, LOG_ACCEPT,
        (struct haul_log_field[]){
            {"reason", errno == EMFILE ? "raise `ulimit -n`: no descriptor left" : strerror(errno)},
            {0}});
    /* The connection stays in the queue, which would wake the loop again at once. */
    loop_unwatch(listener->node->loop, &listener->watch);
    loop_timer_start(listener->node->loop, &listener->timer, clock_now() + PAUSE_NS);
  }
}

static int listen_on(struct haul_node *node, const struct address *address, bool companion) {
  struct listener *listener = alloc_zero(1, sizeof *listener);
  if (!listener)
    return error_memory("listener");
  listener->node = node;
  timer_init(&listener->timer, on_pause_end);
  listener->companion = companion;
  listener->address = *address;
  int code = sock_listen(&listener->address, &listener->fd);
  if (code)
    goto listen_failed;
  struct stat file;
  if (listener->address.path[0] && stat(listener->address.path, &file) == 0) {
    listener->device = file.st_dev;
    listener->inode = file.st_ino;
  }
  code = loop_watch(node->loop, &listener->watch, listener->fd, EPOLLIN, on_connection);
  if (code)
    goto watch_failed;
  list_append(&node->listeners, &listener->link);
  return 0;

watch_failed:
  close(listener->fd);
listen_failed:
  alloc_free(listener);
  return code;
}

/* Unless another node has replaced it. */
static void remove_file(const struct listener *listener) {
  const char *path = listener->address.path;
  struct stat file;
  if (path[0] && stat(path, &file) == 0 && file.st_dev == listener->device &&
      file.st_ino == listener->inode)
    unlink(path);
}

void listen_stop(struct haul_node *node) {
  for (struct list *item; (item = list_take(&node->listeners));) {
    struct listener *listener = list_entry(item, struct listener, link);
    loop_unwatch(node->loop, &listener->watch);
    loop_timer_stop(&listener->timer);
    close(listener->fd);
    remove_file(listener);
    alloc_free(listener);
  }
  accept_stop(node);
}

void listen_forked(struct haul_node *node) {
  list_each(item, &node->listeners) close(list_entry(item, struct listener, link)->fd);
  accept_forked(node);
}

/* Peers of this host that connect over TCP find a Unix socket here, which can carry descriptors.
 * It is optional: without it their path `map` is closed with a reason. */
static void listen_companion(struct haul_node *node) {
  struct address address;
  char *at = node->companion;
  if (at[0])
    return;
  at += snprintf(at, 8, "haul/");
  for (int i = 0; i < 16; i++)
    at += snprintf(at, 3, "%02x", node->fabric.node_id[i]);
  address_abstract(node->companion, &address);
  if (listen_on(node, &address, true) != 0)
    node->companion[0] = '\0';
}

HAUL_API int haul_node_listen(haul_node *node, const char *text) {
  struct address address;
  int code = node_enter("haul_node_listen", node, "node is NULL");
  if (code == 0)
    code = address_parse(text, clock_after(clock_now(), RESOLVE_NS), &address);
  if (code)
    return code;
  if (!address.loopback && !node->tls && !node->config.insecure)
    return error_set(
        HAUL_EINSECURE, 0, text,
        "create a key with `haul key new FILE` and set it as `key` on both sides; on a "
        "trusted network set `insecure` (haul serve --insecure)",
        "without a key a node listens on loopback addresses and Unix sockets only");
  struct haul_error before;
  error_save(&before);
  loop_lock(node->loop);
  code = node_is_closed(node) ? error_code(HAUL_ECLOSED, text) : listen_on(node, &address, false);
  if (code == 0 && !address.local)
    listen_companion(node);
  loop_unlock(node->loop);
  if (code)
    return code;
  fabric_prepare(&node->fabric);
  exports_note_change(node->exports);
  error_reset(&before); /* no companion, or no NIC */
  return 0;
}

bool listener_address(struct haul_node *node, size_t index, char *text, size_t size) {
  bool found = false;
  loop_lock(node->loop);
  list_each(item, &node->listeners) {
    const struct listener *listener = list_entry(item, struct listener, link);
    if (listener->companion || index-- > 0)
      continue;
    address_format(&listener->address, text, size);
    found = true;
    break;
  }
  loop_unlock(node->loop);
  return found;
}

void listener_set_host(char *address, size_t size, const char *host) {
  char port[16];
  if (strncmp(address, "tcp://0.0.0.0:", 14) != 0 && strncmp(address, "tcp://[::]:", 11) != 0)
    return;
  snprintf(port, sizeof port, "%s", strrchr(address, ':'));
  snprintf(address, size, "tcp://%s%s", host, port);
}

HAUL_API int haul_node_address(haul_node *node, size_t index, char *text, size_t size) {
  char address[160];
  int code = node_enter("haul_node_address", node && text, "node or text is NULL");
  if (code)
    return code;
  if (!listener_address(node, index, address, sizeof address))
    return error_set(HAUL_ERANGE, 0, NULL, NULL, "the node has no listener %zu", index);
  size_t length = strlen(address);
  if (length >= size)
    return error_set(HAUL_EINVAL, 0, address, "pass 160 bytes, which fit every address",
                     "%zu bytes are too few for the address", size);
  memcpy(text, address, length + 1);
  return 0;
}
