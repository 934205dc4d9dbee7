/* SPDX-License-Identifier: MIT
 * Stream sockets of the world, TCP and Unix, and the network below them. */
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "calls.h"

#ifndef SOL_TLS
#define SOL_TLS 282 /* include/linux/socket.h */
#endif

struct net net;

static struct cut {
  unsigned from, to;
  int64_t until;
} cuts[CUTS];
static unsigned next_cut;
static int64_t cuts_until, partition_until; /* cuts_until: of the longest cut */

void net_draw(void) {
  net.latency = sim_between(2 * US, 300 * US);
  net.jitter = sim_chance(500000) ? sim_between(0, 3 * MS) : sim_between(0, 50 * US);
  net.picoseconds_a_byte = sim_between(20, 10000); /* 400 to 0.8 Gbit/s */
  net.window = (size_t)1 << sim_between(13, 22);
  net.short_calls = sim_chance(700000) ? (unsigned)sim_below(200000) : 0;
  net.refused_calls = sim_chance(700000) ? (unsigned)sim_below(100000) : 0;
}

int64_t net_arrival(const struct host *from, const struct host *to, size_t bytes) {
  if (from == to)
    return sim_now + 5 * US;
  int64_t *busy = &((struct host *)(uintptr_t)from)->busy_until;
  if (*busy < sim_now)
    *busy = sim_now;
  *busy += (int64_t)bytes * net.picoseconds_a_byte / 1000 * (from->slow ? from->slow : 1);
  return *busy + net.latency + sim_between(0, net.jitter);
}

bool net_is_cut(const struct host *from, const struct host *to) {
  if (from->side != to->side && partition_until > sim_now)
    return true;
  for (unsigned i = 0; cuts_until > sim_now && i < CUTS; i++)
    if (cuts[i].until > sim_now && cuts[i].from == from->number && cuts[i].to == to->number)
      return true;
  return false;
}

void net_cut(unsigned from, unsigned to, int64_t until) {
  if (from == to)
    return;
  cuts[next_cut++ % CUTS] = (struct cut){from, to, until};
  cuts_until = until > cuts_until ? until : cuts_until;
}

void net_partition(int64_t until) {
  partition_until = until;
}

void net_heal(void) {
  memset(cuts, 0, sizeof cuts);
  cuts_until = partition_until = 0;
}

struct name {
  sa_family_t family;
  uint16_t port;
  uint32_t address;
  uint8_t length;
  char path[108]; /* as in sun_path */
};

enum item_kind { DATA, FIN, RESET, ESTABLISHED, REFUSED };

/* What travels to a socket, and then the bytes that lie there unread. */
struct item {
  struct list link;
  enum item_kind kind;
  int64_t at;
  size_t length, taken;
  struct file *files[16];
  size_t file_count;
  int pages; /* 0, or the real pipe that refers to the sender's pages */
  char bytes[];
};

enum state { FRESH, BOUND, LISTENS, CONNECTING, CONNECTED };

struct socket {
  struct file file;
  int domain;
  enum state state;
  struct host *host;
  pid_t pid, peer_pid;
  struct name name, peer_name;
  struct list bound;   /* in host->bound */
  struct list pending; /* in a listener's backlog, or the head of it */
  unsigned backlog, backlog_most;
  struct socket *peer; /* NULL: gone, or none yet */
  int64_t peer_back;   /* the peer's host lost power and answers again from then on */
  struct list flight;  /* items on the way here, in order */
  struct list arrived; /* unread data */
  size_t flight_bytes, arrived_bytes, window;
  int low_water, error;
  bool fin, read_shut, write_shut;
  struct event arrival, attempt, probe;
  unsigned attempts, lost_probes; /* probes: of TCP's keep-alive */
  unsigned losses;                /* of the next item in flight, one after the other */
  int64_t probe_idle, probe_interval;
  struct list all; /* of the world */
};

static struct list all_sockets = LIST_INIT(all_sockets);

static struct socket *socket_new(int domain) {
  struct socket *socket = calloc(1, sizeof *socket);
  file_init(&socket->file, FILE_SOCKET);
  socket->domain = domain;
  socket->host = process_current() ? process_current()->host : NULL;
  socket->pid = process_current() ? process_current()->pid : 0;
  socket->low_water = 1;
  socket->probe_idle = 7200 * S; /* the kernel's */
  socket->probe_interval = 75 * S;
  socket->window = net.window;
  list_init(&socket->bound);
  list_init(&socket->pending);
  list_init(&socket->flight);
  list_init(&socket->arrived);
  list_append(&all_sockets, &socket->all);
  return socket;
}

static bool is_unix(const struct socket *socket) {
  return socket->domain == AF_UNIX;
}

static void item_free(struct item *item) {
  for (size_t i = 0; i < item->file_count; i++)
    file_drop(item->files[i]);
  if (item->pages)
    close(item->pages);
  list_remove(&item->link);
  free(item);
}

static void fail_socket(struct socket *socket, int error) {
  socket->error = error;
  socket->fin = true;
  socket->write_shut = true;
  if (socket->peer) {
    socket->peer->peer = NULL;
    socket->peer = NULL;
  }
  file_changed(&socket->file);
}

static void arrive(struct socket *socket, struct item *item) {
  list_remove(&item->link);
  if (item->kind == DATA) {
    socket->flight_bytes -= item->length;
    if (socket->read_shut || socket->error) {
      item_free(item);
      return;
    }
    list_append(&socket->arrived, &item->link);
    socket->arrived_bytes += item->length;
    file_changed(&socket->file);
    return;
  }
  if (item->kind == FIN)
    socket->fin = true;
  else if (item->kind == ESTABLISHED)
    socket->state = CONNECTED;
  else
    fail_socket(socket, item->kind == RESET ? ECONNRESET : ECONNREFUSED);
  item_free(item);
  file_changed(&socket->file);
}

static void schedule_arrival(struct socket *socket);

static struct host *host_of_peer(const struct socket *socket);

/* A cut link loses packets: the sender tries again later. */
static void on_arrival(struct event *event) {
  struct socket *socket = list_entry(event, struct socket, arrival);
  if (!is_unix(socket) && net_is_cut(host_of_peer(socket), socket->host)) {
    int64_t wait = sim_between(50 * MS, 400 * MS) << socket->losses;
    socket->losses += socket->losses < net.backoff;
    event_schedule(event, sim_now + wait, on_arrival);
    return;
  }
  socket->losses = 0;
  while (!list_empty(&socket->flight)) {
    struct item *item = list_entry(socket->flight.next, struct item, link);
    if (item->at > sim_now)
      break;
    arrive(socket, item);
  }
  schedule_arrival(socket);
}

static void schedule_arrival(struct socket *socket) {
  if (!list_empty(&socket->flight) && !socket->arrival.place)
    event_schedule(&socket->arrival, list_entry(socket->flight.next, struct item, link)->at,
                   on_arrival);
}

/* Nothing overtakes within a connection. */
static void send_item(struct socket *to, struct item *item, int64_t at) {
  if (!list_empty(&to->flight)) {
    int64_t last = list_entry(to->flight.previous, struct item, link)->at;
    at = at < last ? last : at;
  }
  item->at = at;
  list_append(&to->flight, &item->link);
  if (item->kind == DATA)
    to->flight_bytes += item->length;
  if (is_unix(to))
    on_arrival(&to->arrival);
  else
    schedule_arrival(to);
}

static struct item *item_new(enum item_kind kind, size_t length) {
  struct item *item = calloc(1, sizeof *item + length);
  item->kind = kind;
  item->length = length;
  list_init(&item->link);
  return item;
}

static void send_mark(struct socket *from, struct socket *to, enum item_kind kind) {
  send_item(to, item_new(kind, 0), is_unix(to) ? sim_now : net_arrival(from->host, to->host, 40));
}

static struct name name_from(const struct sockaddr *address, socklen_t length) {
  struct name name = {.family = address->sa_family};
  if (address->sa_family == AF_INET) {
    const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
    name.address = ntohl(in->sin_addr.s_addr);
    name.port = ntohs(in->sin_port);
  } else {
    name.length = (uint8_t)(length - offsetof(struct sockaddr_un, sun_path));
    memcpy(name.path, ((const struct sockaddr_un *)(const void *)address)->sun_path, name.length);
  }
  return name;
}

static int name_to(const struct name *name, struct sockaddr *address, socklen_t *length) {
  struct sockaddr_storage storage = {.ss_family = name->family};
  socklen_t size = sizeof(sa_family_t);
  if (name->family == AF_INET) {
    struct sockaddr_in *in = (struct sockaddr_in *)&storage;
    in->sin_addr.s_addr = htonl(name->address);
    in->sin_port = htons(name->port);
    size = sizeof *in;
  } else if (name->length) {
    memcpy(((struct sockaddr_un *)&storage)->sun_path, name->path, name->length);
    size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + name->length);
  }
  memcpy(address, &storage, size < *length ? size : *length);
  *length = size;
  return 0;
}

static bool is_same(const struct name *one, const struct name *other) {
  if (one->family != other->family)
    return false;
  if (one->family == AF_INET)
    return one->port == other->port &&
           (one->address == other->address || !one->address || !other->address);
  return one->length == other->length && memcmp(one->path, other->path, one->length) == 0;
}

static struct socket *find_bound(const struct host *host, const struct name *name) {
  list_each(item, &host->bound) {
    struct socket *socket = list_entry(item, struct socket, bound);
    if (is_same(&socket->name, name))
      return socket;
  }
  return NULL;
}

static struct name name_of_path(const char *path) {
  struct name name = {.family = AF_UNIX, .length = (uint8_t)(strlen(path) + 1)};
  memcpy(name.path, path, name.length);
  return name;
}

bool socket_name_exists(const struct host *host, const char *path) {
  struct name name = name_of_path(path);
  return find_bound(host, &name) != NULL;
}

bool socket_name_remove(const struct host *host, const char *path) {
  struct name name = name_of_path(path);
  struct socket *socket = find_bound(host, &name);
  if (socket)
    list_remove(&socket->bound);
  return socket != NULL;
}

static struct host *hosts[HOSTS];

void net_add_host(struct host *host) {
  hosts[host->number] = host;
}

static struct host *host_at(const struct host *own, uint32_t address) {
  if (address >> 24 == 127)
    return (struct host *)(uintptr_t)own;
  uint32_t number = (address & 0xffffff) - 1;
  return address >> 24 == 10 && number < HOSTS ? hosts[number] : NULL;
}

static struct host *host_of_peer(const struct socket *socket) {
  if (socket->peer)
    return socket->peer->host;
  struct host *host = host_at(socket->host, socket->peer_name.address);
  return host ? host : socket->host;
}

/* Calls: opening */

static struct socket *socket_of(int descriptor) {
  struct file *file = file_of(descriptor);
  if (file && file->kind != FILE_SOCKET) {
    errno = ENOTSOCK;
    return NULL;
  }
  return (struct socket *)file;
}

static int fail(int error) {
  errno = error;
  return -1;
}

int world_socket(int domain, int type, int protocol) {
  (void)protocol;
  sim_point(2 * US);
  if (domain != AF_INET && domain != AF_UNIX)
    return fail(EAFNOSUPPORT);
  if ((type & 15) != SOCK_STREAM)
    return fail(EPROTONOSUPPORT);
  if (refuses_memory())
    return fail(sim_chance(500000) ? ENOMEM : ENOBUFS);
  struct socket *socket = socket_new(domain);
  socket->file.nonblocking = type & SOCK_NONBLOCK;
  return file_install(&socket->file);
}

int world_bind(int descriptor, const struct sockaddr *address, socklen_t length) {
  sim_point(1 * US);
  struct socket *socket = socket_of(descriptor);
  if (!socket)
    return -1;
  struct name name = name_from(address, length);
  if (name.family == AF_INET && name.address && host_at(socket->host, name.address) != socket->host)
    return fail(EADDRNOTAVAIL);
  if (name.family == AF_INET && name.port == 0)
    do
      name.port = ++socket->host->next_port;
    while (find_bound(socket->host, &name));
  if (find_bound(socket->host, &name))
    return fail(EADDRINUSE);
  socket->name = name;
  socket->state = BOUND;
  list_append(&socket->host->bound, &socket->bound);
  return 0;
}

int world_listen(int descriptor, int backlog) {
  sim_point(1 * US);
  struct socket *socket = socket_of(descriptor);
  if (!socket)
    return -1;
  socket->state = LISTENS;
  socket->backlog_most = (unsigned)backlog;
  return 0;
}

/* The server's side of a new connection; it waits in the backlog. */
static void meet(struct socket *client, struct socket *listener) {
  struct socket *server = socket_new(client->domain);
  server->host = listener->host;
  server->pid = listener->pid;
  server->state = CONNECTED;
  server->name = client->peer_name;
  server->peer_name = client->name;
  server->window = client->window;
  server->peer_pid = client->pid;
  client->peer_pid = listener->pid;
  server->peer = client;
  client->peer = server;
  list_append(&listener->pending, &server->pending);
  listener->backlog++;
  file_changed(&listener->file);
}

static void on_attempt(struct event *event) {
  struct socket *client = list_entry(event, struct socket, attempt);
  struct host *host = host_at(client->host, client->peer_name.address);
  struct socket *listener = host ? find_bound(host, &client->peer_name) : NULL;
  bool full = listener && listener->backlog >= listener->backlog_most;
  if (!host || full || net_is_cut(client->host, host)) { /* SYNs are lost */
    if (++client->attempts > 6)
      fail_socket(client, ETIMEDOUT);
    else
      event_schedule(event, sim_now + (S << client->attempts), on_attempt);
    return;
  }
  struct item *item = item_new(listener && listener->state == LISTENS ? ESTABLISHED : REFUSED, 0);
  if (item->kind == ESTABLISHED)
    meet(client, listener);
  send_item(client, item, net_arrival(host, client->host, 40));
}

static int connect_unix(struct socket *client) {
  struct socket *listener = find_bound(client->host, &client->peer_name);
  if (!listener || listener->state != LISTENS)
    return fail(ECONNREFUSED);
  if (listener->backlog >= listener->backlog_most)
    return fail(EAGAIN);
  meet(client, listener);
  client->state = CONNECTED;
  return 0;
}

int world_connect(int descriptor, const struct sockaddr *address, socklen_t length) {
  sim_point(2 * US);
  struct socket *socket = socket_of(descriptor);
  if (!socket)
    return -1;
  socket->peer_name = name_from(address, length);
  if (is_unix(socket))
    return connect_unix(socket);
  struct host *host = host_at(socket->host, socket->peer_name.address);
  socket->name = (struct name){.family = AF_INET,
                               .port = ++socket->host->next_port,
                               .address = host == socket->host ? socket->peer_name.address
                                                               : socket->host->address};
  socket->state = CONNECTING;
  event_schedule(&socket->attempt, host ? net_arrival(socket->host, host, 40) : sim_now,
                 on_attempt);
  return fail(EINPROGRESS);
}

int world_accept4(int descriptor, struct sockaddr *address, socklen_t *length, int flags) {
  sim_point(2 * US);
  struct socket *listener = socket_of(descriptor);
  if (!listener)
    return -1;
  if (list_empty(&listener->pending))
    return fail(EAGAIN);
  if (refuses_descriptor())
    return fail(EMFILE);
  struct socket *server = list_entry(list_take(&listener->pending), struct socket, pending);
  listener->backlog--;
  server->file.nonblocking = flags & SOCK_NONBLOCK;
  if (address)
    name_to(&server->peer_name, address, length);
  struct process *process = process_current();
  unsigned refusing = process->refuse_descriptors, next = process->next_descriptor;
  process->refuse_descriptors = process->next_descriptor = 0;
  int got = file_install(&server->file);
  process->refuse_descriptors = refusing;
  process->next_descriptor = next;
  return got;
}

/* As close(2): unread bytes reset a connection, else it ends in order. */
static void tell_peer(struct socket *socket) {
  struct socket *peer = socket->peer;
  if (!peer)
    return;
  bool unread = socket->arrived_bytes > 0 || socket->flight_bytes > 0;
  socket->peer = peer->peer = NULL;
  peer->peer_back = 0;
  if (unread && !(is_unix(socket) && socket->read_shut))
    send_mark(socket, peer, RESET);
  else if (!socket->write_shut)
    send_mark(socket, peer, FIN);
}

void socket_free(struct file *file) {
  struct socket *socket = (struct socket *)file;
  tell_peer(socket);
  if (socket->state == LISTENS)
    while (!list_empty(&socket->pending)) {
      struct socket *server = list_entry(list_take(&socket->pending), struct socket, pending);
      file_drop(&server->file);
    }
  while (!list_empty(&socket->flight))
    item_free(list_entry(socket->flight.next, struct item, link));
  while (!list_empty(&socket->arrived))
    item_free(list_entry(socket->arrived.next, struct item, link));
  event_cancel(&socket->arrival);
  event_cancel(&socket->attempt);
  event_cancel(&socket->probe);
  list_remove(&socket->bound);
  list_remove(&socket->all);
  free(socket);
}

void socket_process_died(struct file *file, bool silent) {
  struct socket *socket = (struct socket *)file;
  if (!silent || !socket->peer || is_unix(socket))
    return;
  socket->peer->peer_back = sim_now + sim_between(S, 30 * S);
  socket->peer->peer = NULL;
  socket->peer = NULL;
}

int world_shutdown(int descriptor, int how) {
  sim_point(1 * US);
  struct socket *socket = socket_of(descriptor);
  if (!socket)
    return -1;
  if (socket->state != CONNECTED)
    return fail(ENOTCONN);
  if (how != SHUT_RD && !socket->write_shut) {
    socket->write_shut = true;
    if (socket->peer)
      send_mark(socket, socket->peer, FIN);
  }
  if (how != SHUT_WR) {
    socket->read_shut = true;
    if (is_unix(socket) && socket->peer) {
      socket->peer->write_shut = true;
      file_changed(&socket->peer->file);
    }
  }
  file_changed(&socket->file);
  return 0;
}

void net_answers_again(const struct host *host) {
  list_each(item, &all_sockets) {
    struct socket *socket = list_entry(item, struct socket, all);
    if (!socket->peer && socket->peer_name.address == host->address && socket->peer_back > sim_now)
      socket->peer_back = sim_now;
  }
}

size_t net_reset(const struct host *one, const struct host *other) {
  size_t count = 0;
  unsigned spared = sim_chance(500000) ? 0 : 700000;
  list_each_safe(item, &all_sockets) {
    struct socket *socket = list_entry(item, struct socket, all);
    struct socket *peer = socket->peer;
    if (!peer || is_unix(socket) || socket->host != one || peer->host != other)
      continue;
    if (sim_chance(spared))
      continue;
    fail_socket(socket, ECONNRESET);
    fail_socket(peer, ECONNRESET);
    count++;
  }
  return count;
}

static size_t free_window(const struct socket *socket) {
  const struct socket *peer = socket->peer;
  if (!peer)
    return socket->window;
  size_t used = peer->flight_bytes + peer->arrived_bytes;
  return used < socket->window ? socket->window - used : 0;
}

/* As the kernel's, a connection with a third of its window free is writable. */
static bool is_full(const struct socket *socket) {
  return free_window(socket) * 3 < socket->window;
}

uint32_t socket_ready(struct file *file) {
  const struct socket *socket = (const struct socket *)file;
  uint32_t ready = 0;
  if (socket->state == LISTENS)
    return list_empty(&socket->pending) ? 0 : EPOLLIN;
  if (socket->error)
    return EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP;
  if (socket->state != CONNECTED)
    return socket->state == CONNECTING ? 0 : EPOLLOUT | EPOLLHUP;
  bool ended = socket->fin || socket->read_shut;
  if (ended || socket->arrived_bytes >= (size_t)socket->low_water)
    ready |= EPOLLIN;
  if (ended)
    ready |= EPOLLRDHUP;
  if (ended && socket->write_shut)
    ready |= EPOLLHUP;
  if (socket->write_shut || !is_full(socket))
    ready |= EPOLLOUT;
  return ready;
}

/* The files of SCM_RIGHTS become part of the item. */
static int attach_files(struct item *item, const struct msghdr *message) {
  for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
       header = CMSG_NXTHDR((struct msghdr *)(uintptr_t)message, header)) {
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count && item->file_count < 16; i++) {
      int descriptor;
      memcpy(&descriptor, CMSG_DATA(header) + i * sizeof descriptor, sizeof descriptor);
      struct file *file = file_of(descriptor);
      if (!file)
        return EBADF;
      file->references++;
      item->files[item->file_count++] = file;
    }
  }
  return 0;
}

/* How much of `length` the call takes; 0: EAGAIN. A small message into an empty connection, or into
 * a Unix connection with room, is always taken whole, as by the kernel. */
static size_t accepted(const struct socket *socket, size_t length) {
  size_t room = free_window(socket);
  if (length <= 4096 && (room == socket->window || (is_unix(socket) && room >= length)))
    return length;
  if (room == 0)
    return 0;
  if (sim_chance(net.refused_calls)) {
    sim_faults++;
    return 0;
  }
  size_t taken = length < room ? length : room;
  if (taken > 1 && sim_chance(net.short_calls)) {
    sim_faults++;
    taken = sim_chance(300000) ? 1 : 1 + sim_below(taken - 1);
  }
  return taken;
}

static size_t message_length(const struct msghdr *message) {
  size_t length = 0;
  for (size_t i = 0; i < message->msg_iovlen; i++)
    length += message->msg_iov[i].iov_len;
  return length;
}

static void gather(struct item *item, const struct msghdr *message) {
  size_t done = 0;
  for (size_t i = 0; i < message->msg_iovlen && done < item->length; i++) {
    size_t part = message->msg_iov[i].iov_len;
    if (part > item->length - done)
      part = item->length - done;
    memcpy(item->bytes + done, message->msg_iov[i].iov_base, part);
    done += part;
  }
}

#define PROBES 9 /* the kernel's TCP_KEEPCNT */

/* TCP's keep-alive: a probe without a response, or with a reset of a host that lost power. */
static void on_probe(struct event *event) {
  struct socket *socket = list_entry(event, struct socket, probe);
  const struct socket *peer = socket->peer;
  if (socket->state != CONNECTED || socket->fin || socket->error)
    return;
  bool reached =
      peer ? !net_is_cut(socket->host, peer->host) && !net_is_cut(peer->host, socket->host)
           : sim_now >= socket->peer_back;
  socket->lost_probes = reached ? 0 : socket->lost_probes + 1;
  if (socket->lost_probes >= PROBES)
    fail_socket(socket, ETIMEDOUT);
  else if (reached && !peer && list_empty(&socket->flight))
    send_item(socket, item_new(RESET, 0), sim_now + 2 * net.latency);
  else
    event_schedule(event, sim_now + socket->probe_interval, on_probe);
}

/* The peer is gone: a host that is up answers with a reset, after a while if it lost power. */
static ssize_t send_to_nobody(struct socket *socket, size_t length) {
  int64_t at = sim_now + 2 * net.latency;
  if (list_empty(&socket->flight))
    send_item(socket, item_new(RESET, 0), at > socket->peer_back ? at : socket->peer_back);
  return (ssize_t)length;
}

/* Why nothing can be sent: an errno, or 0. */
static int send_error(struct socket *socket) {
  int error = socket->error;
  socket->error = 0;
  if (error)
    return error;
  if (socket->state != CONNECTED)
    return ENOTCONN;
  return socket->write_shut || (!socket->peer && is_unix(socket)) ? EPIPE : 0;
}

static void send_data(struct socket *socket, struct item *item) {
  send_item(socket->peer, item,
            is_unix(socket) ? sim_now
                            : net_arrival(socket->host, socket->peer->host, item->length));
}

static ssize_t send_message(struct socket *socket, const struct msghdr *message) {
  size_t length = message_length(message);
  sim_point(1 * US + (int64_t)length / 10);
  int error = send_error(socket);
  if (error)
    return fail(error);
  if (!socket->peer)
    return send_to_nobody(socket, length);
  if (refuses_memory())
    return fail(ENOBUFS);
  size_t taken = accepted(socket, length);
  if (taken == 0 && length > 0)
    return fail(EAGAIN);
  struct item *item = item_new(DATA, taken);
  error = attach_files(item, message);
  if (error) {
    item_free(item);
    return fail(error);
  }
  gather(item, message);
  send_data(socket, item);
  return (ssize_t)taken;
}

ssize_t world_sendmsg(int descriptor, const struct msghdr *message, int flags) {
  (void)flags;
  struct socket *socket = socket_of(descriptor);
  return socket ? send_message(socket, message) : -1;
}

/* Reads pages that were passed by reference: their content is that of now. */
static void read_pages(int pages, char *to, size_t length) {
  for (size_t done = 0; done < length;) {
    ssize_t got = read(pages, to + done, length - done);
    if (got <= 0)
      sim_fail("simulator", "a pipe lost %zu bytes", length - done);
    done += (size_t)got;
  }
}

/* Fills the message's spans from byte `at` on, with `bytes` or, if that is NULL, from the pipe. */
static void scatter(const struct msghdr *message, size_t at, const char *bytes, int pages,
                    size_t length) {
  for (size_t i = 0; i < message->msg_iovlen && length > 0; i++) {
    size_t room = message->msg_iov[i].iov_len;
    if (at >= room) {
      at -= room;
      continue;
    }
    size_t part = room - at < length ? room - at : length;
    char *to = (char *)message->msg_iov[i].iov_base + at;
    if (bytes) {
      memcpy(to, bytes, part);
      bytes += part;
    } else {
      read_pages(pages, to, part);
    }
    length -= part;
    at = 0;
  }
}

/* Installs the item's files in the receiver; those without room are closed, as by the kernel. */
static void deliver_files(struct item *item, struct msghdr *message, size_t room) {
  int got[16];
  size_t count = 0;
  for (size_t i = 0; i < item->file_count; i++) {
    item->files[i]->references++;
    int descriptor = -1;
    if (CMSG_SPACE((count + 1) * sizeof(int)) <= room)
      descriptor = file_install(item->files[i]);
    else
      file_drop(item->files[i]);
    if (descriptor < 0) {
      message->msg_flags |= MSG_CTRUNC;
      break;
    }
    got[count++] = descriptor;
  }
  if (count == 0)
    return;
  struct cmsghdr *header = message->msg_control;
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  memcpy(CMSG_DATA(header), got, count * sizeof(int));
  message->msg_controllen = CMSG_SPACE(count * sizeof(int));
}

/* The same, and leaves the pages in the pipe. */
static void peek_pages(const struct msghdr *message, size_t at, int pages, size_t length) {
  int copy[2];
  if (pipe2(copy, O_CLOEXEC) != 0 || tee(pages, copy[1], length, 0) < (ssize_t)length)
    sim_fail("simulator", "%zu bytes of a pipe cannot be peeked at", length);
  scatter(message, at, NULL, copy[0], length);
  close(copy[0]);
  close(copy[1]);
}

static size_t wanted_bytes(const struct socket *socket, const struct msghdr *message) {
  size_t wanted = message_length(message);
  if (wanted > socket->arrived_bytes)
    wanted = socket->arrived_bytes;
  if (wanted > 1 && sim_chance(net.short_calls)) {
    sim_faults++;
    wanted = sim_chance(300000) ? 1 : 1 + sim_below(wanted - 1);
  }
  return wanted;
}

/* Data behind descriptors is left to the next call, as by the kernel. As in Linux 6.18, a peek goes
 * on behind its last byte until it finds descriptors, which belong to data that it does not return.
 */
static ssize_t take_bytes(struct socket *socket, struct msghdr *message, bool peek) {
  size_t wanted = wanted_bytes(socket, message), done = 0, room = message->msg_controllen;
  message->msg_controllen = 0;
  list_each_safe(link, &socket->arrived) {
    struct item *item = list_entry(link, struct item, link);
    size_t part = item->length - item->taken;
    if (part > wanted - done)
      part = wanted - done;
    if (item->pages && peek && part > 0)
      peek_pages(message, done, item->pages, part);
    else
      scatter(message, done, item->pages ? NULL : item->bytes + item->taken, item->pages, part);
    done += part;
    bool files = item->file_count > 0;
    if (files)
      deliver_files(item, message, room);
    if (!peek) {
      item->taken += part;
      socket->arrived_bytes -= part;
      while (item->file_count > 0)
        file_drop(item->files[--item->file_count]);
      if (item->taken == item->length)
        item_free(item);
    }
    if (files || (done == wanted && !peek))
      break;
  }
  return (ssize_t)done;
}

static ssize_t receive_message(struct socket *socket, struct msghdr *message, int flags) {
  sim_point(1 * US);
  message->msg_flags = 0;
  if (socket->arrived_bytes == 0) {
    message->msg_controllen = 0;
    if (socket->error) {
      int error = socket->error;
      socket->error = 0;
      return fail(error);
    }
    if (socket->state != CONNECTED)
      return fail(ENOTCONN);
    return socket->fin || socket->read_shut ? 0 : fail(EAGAIN);
  }
  if (message_length(message) == 0)
    return 0;
  if (sim_chance(net.refused_calls / 4)) {
    sim_faults++;
    return fail(EINTR);
  }
  bool was_full = socket->peer && is_full(socket->peer);
  ssize_t got = take_bytes(socket, message, flags & MSG_PEEK);
  sim_now += got / 10;
  if (was_full && !is_full(socket->peer))
    file_changed(&socket->peer->file);
  return got;
}

ssize_t world_recvmsg(int descriptor, struct msghdr *message, int flags) {
  struct socket *socket = socket_of(descriptor);
  return socket ? receive_message(socket, message, flags) : -1;
}

ssize_t world_recv(int descriptor, void *bytes, size_t length, int flags) {
  struct iovec span = {bytes, length};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  return world_recvmsg(descriptor, &message, flags);
}

ssize_t socket_read(struct file *file, void *bytes, size_t length) {
  struct iovec span = {bytes, length};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  return receive_message((struct socket *)file, &message, 0);
}

ssize_t socket_write(struct file *file, const void *bytes, size_t length) {
  struct iovec span = {(void *)(uintptr_t)bytes, length};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  return send_message((struct socket *)file, &message);
}

int world_setsockopt(int descriptor, int level, int option, const void *value, socklen_t size) {
  (void)size;
  sim_point(300);
  struct socket *socket = socket_of(descriptor);
  if (!socket)
    return -1;
  if (level == SOL_SOCKET && option == SO_RCVLOWAT)
    memcpy(&socket->low_water, value, sizeof socket->low_water);
  if (level == IPPROTO_TCP && option == TCP_ULP)
    return fail(ENOENT); /* no kernel TLS: processes encrypt */
  if (level == SOL_TLS)
    return fail(ENOPROTOOPT);
  if (level == SOL_SOCKET && option == SO_KEEPALIVE)
    event_schedule(&socket->probe, sim_now + socket->probe_idle, on_probe);
  if (level == IPPROTO_TCP && option == TCP_KEEPIDLE)
    socket->probe_idle = *(const int *)value * S;
  if (level == IPPROTO_TCP && option == TCP_KEEPINTVL)
    socket->probe_interval = *(const int *)value * S;
  if (level == SOL_SOCKET && option == 83) /* SO_PASSRIGHTS, since 6.16 */
    return fail(ENOPROTOOPT);
  return 0;
}

int world_getsockopt(int descriptor, int level, int option, void *value, socklen_t *size) {
  sim_point(300);
  struct socket *socket = socket_of(descriptor);
  if (!socket)
    return -1;
  int number = 0;
  if (level == SOL_SOCKET && option == SO_PEERCRED) {
    struct ucred peer = {.pid = socket->peer_pid, .uid = 1000, .gid = 1000};
    memcpy(value, &peer, sizeof peer);
    *size = sizeof peer;
    return 0;
  }
  if (level != SOL_SOCKET)
    return fail(ENOPROTOOPT);
  if (option == SO_ERROR) {
    number = socket->error;
    socket->error = 0;
  } else if (option == SO_DOMAIN) {
    number = socket->domain;
  } else if (option == SO_TYPE) {
    number = SOCK_STREAM;
  } else if (option == SO_ACCEPTCONN) {
    number = socket->state == LISTENS;
  } else {
    return fail(ENOPROTOOPT);
  }
  memcpy(value, &number, sizeof number);
  *size = sizeof number;
  return 0;
}

int world_getsockname(int descriptor, struct sockaddr *address, socklen_t *length) {
  const struct socket *socket = socket_of(descriptor);
  return socket ? name_to(&socket->name, address, length) : -1;
}

int world_getpeername(int descriptor, struct sockaddr *address, socklen_t *length) {
  const struct socket *socket = socket_of(descriptor);
  if (!socket)
    return -1;
  return socket->state == CONNECTED ? name_to(&socket->peer_name, address, length) : fail(ENOTCONN);
}

int world_ioctl(int descriptor, unsigned long request, void *argument) {
  sim_point(300);
  struct socket *socket = socket_of(descriptor);
  if (!socket)
    return -1;
  if (request != FIONREAD)
    return fail(ENOTTY);
  *(int *)argument = (int)socket->arrived_bytes;
  return 0;
}

/* An end of a real pipe, so that pages are referred to as by the kernel. */
struct pipe_file {
  struct file file;
  int real;
};

static int install_pipe(int real) {
  struct pipe_file *pipe = calloc(1, sizeof *pipe);
  file_init(&pipe->file, FILE_PIPE);
  pipe->real = real;
  return file_install(&pipe->file);
}

int pipe_real(const struct file *file) {
  return file->kind == FILE_PIPE ? ((const struct pipe_file *)file)->real : -1;
}

void pipe_free(struct file *file) {
  close(((struct pipe_file *)file)->real);
  free(file);
}

int world_pipe2(int pair[2], int flags) {
  int real[2];
  sim_point(3 * US);
  if (pipe2(real, flags | O_NONBLOCK) != 0)
    return -1;
  int reads = install_pipe(real[0]), writes = reads < 0 ? -1 : install_pipe(real[1]);
  if (reads < 0)
    close(real[1]);
  if (reads >= 0 && writes < 0) {
    world_close(reads);
    errno = EMFILE;
  }
  if (writes < 0)
    return -1;
  pair[0] = reads;
  pair[1] = writes;
  return 0;
}

ssize_t world_vmsplice(int descriptor, const struct iovec *spans, size_t count, unsigned flags) {
  struct file *file = file_of(descriptor);
  sim_point(2 * US);
  if (!file)
    return -1;
  if (sim_chance(net.refused_calls)) {
    sim_faults++;
    return fail(EAGAIN);
  }
  return vmsplice(pipe_real(file), spans, count, flags | SPLICE_F_NONBLOCK);
}

/* Moves references to pages from the pipe to the connection. */
ssize_t world_splice(int from, off_t *from_at, int to, off_t *to_at, size_t length,
                     unsigned flags) {
  (void)from_at, (void)to_at, (void)flags;
  int pipe[2];
  struct file *file = file_of(from);
  struct socket *socket = socket_of(to);
  sim_point(2 * US);
  if (!file || !socket)
    return -1;
  int error = send_error(socket);
  if (error)
    return fail(error);
  size_t taken = socket->peer ? accepted(socket, length) : length;
  if (taken == 0)
    return fail(EAGAIN);
  if (pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0)
    return -1;
  ssize_t moved = splice(pipe_real(file), NULL, pipe[1], NULL, taken, SPLICE_F_NONBLOCK);
  int system = errno;
  close(pipe[1]);
  if (moved <= 0 || !socket->peer) {
    close(pipe[0]);
    errno = system;
    return moved <= 0 ? moved : send_to_nobody(socket, (size_t)moved);
  }
  struct item *item = item_new(DATA, 0);
  item->pages = pipe[0];
  item->length = (size_t)moved;
  send_data(socket, item);
  return moved;
}

int world_socketpair(int domain, int type, int protocol, int pair[2]) {
  int first = world_socket(domain, type, protocol);
  int second = first < 0 ? -1 : world_socket(domain, type, protocol);
  if (second < 0) {
    if (first >= 0)
      world_close(first);
    return fail(EMFILE);
  }
  struct socket *one = socket_of(first), *other = socket_of(second);
  one->state = other->state = CONNECTED;
  one->peer = other;
  other->peer = one;
  pair[0] = first;
  pair[1] = second;
  return 0;
}

/* Numbers only: there is no resolver. */
int world_getaddrinfo(const char *host, const char *port, const struct addrinfo *wanted,
                      struct addrinfo **found) {
  struct addrinfo numeric = wanted ? *wanted : (struct addrinfo){0};
  numeric.ai_flags |= AI_NUMERICHOST | AI_NUMERICSERV;
  numeric.ai_flags &= ~AI_ADDRCONFIG;
  sim_point(50 * US);
  return getaddrinfo(host, port, &numeric, found);
}
