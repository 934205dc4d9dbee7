/* SPDX-License-Identifier: MIT
 * NIXL by the C API of its wheel. A backend moves all bytes, UCX or that in HAUL_BENCH_BACKEND; the
 * program passes the metadata over a TCP connection of its own. HAUL_BENCH_NIXL: the folder of
 * libnixl_capi.so.
 *   nixl write SIZE DEPTH SECONDS     DEPTH writes of SIZE bytes in flight
 *   nixl segments COUNT SIZE SECONDS  writes of COUNT scattered segments each
 *   nixl first SIZE TIMES             a write to a new process: metadata, connection, SIZE bytes
 *   nixl latency SIZE TIMES           reads one after the other, from the post to the end
 *   nixl submit COUNT SIZE TIMES      the same writes of segments: only to make and post each
 * The first two print GB/s and CPU seconds a GB, `first` and `submit` the median in ms, `latency`
 * in us. */
#include "common.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { IN_PROGRESS = 1, DRAM = 0, READ = 0, WRITE = 1 };

struct agent_config {
  bool progress_thread, listen_thread;
  int port, synchronization;
  unsigned workers;
  uint64_t progress_delay_us, listen_delay_us;
  bool telemetry;
};

static struct {
  int (*create_configured_agent)(const char *, const struct agent_config *, void **agent);
  int (*create_backend)(void *agent, const char *name, void *parameters, void **backend);
  int (*get_plugin_params)(void *agent, const char *name, void **memories, void **parameters);
  int (*get_local_md)(void *agent, void **bytes, size_t *length);
  int (*load_remote_md)(void *agent, const void *bytes, size_t length, char **name);
  int (*invalidate_remote_md)(void *agent, const char *name);
  int (*create_opt_args)(void **options);
  int (*create_reg_dlist)(int memory, void **list);
  int (*reg_dlist_add_desc)(void *list, uintptr_t, size_t, uint64_t device, const void *, size_t);
  int (*register_mem)(void *agent, void *list, void *options);
  int (*create_xfer_dlist)(int memory, void **list);
  int (*xfer_dlist_add_desc)(void *list, uintptr_t, size_t, uint64_t device);
  int (*prep_xfer_dlist)(void *agent, const char *name, void *list, void **prepared, void *options);
  int (*make_xfer_req)(void *agent, int operation, void *local, const int *, size_t, void *remote,
                       const int *, size_t, void **request, void *options);
  int (*post_xfer_req)(void *agent, void *request, void *options);
  int (*get_xfer_status)(void *agent, void *request);
  int (*release_xfer_req)(void *agent, void *request);
  int (*destroy_xfer_req)(void *request);
} api;

static void *symbol(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found)
    fprintf(stderr, "%s\n", dlerror());
  need(found != NULL, name);
  return found;
}

static void load_api(void) {
  char path[4096];
  const char *folder = getenv("HAUL_BENCH_NIXL");
  snprintf(path, sizeof path, "%s/libnixl_capi.so", folder ? folder : ".");
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    fprintf(stderr, "%s\n", dlerror());
  need(library != NULL, path);
#define LOAD(name) *(void **)&api.name = symbol(library, "nixl_capi_" #name)
  LOAD(create_configured_agent);
  LOAD(create_backend);
  LOAD(get_plugin_params);
  LOAD(get_local_md);
  LOAD(load_remote_md);
  LOAD(invalidate_remote_md);
  LOAD(create_opt_args);
  LOAD(create_reg_dlist);
  LOAD(reg_dlist_add_desc);
  LOAD(register_mem);
  LOAD(create_xfer_dlist);
  LOAD(xfer_dlist_add_desc);
  LOAD(prep_xfer_dlist);
  LOAD(make_xfer_req);
  LOAD(post_xfer_req);
  LOAD(get_xfer_status);
  LOAD(release_xfer_req);
  LOAD(destroy_xfer_req);
#undef LOAD
}

static void works(int status, const char *what) {
  if (status == 0)
    return;
  fprintf(stderr, "nixl: %s: status %d\n", what, status);
  exit(1);
}

static const char *backend_name(void) {
  const char *name = getenv("HAUL_BENCH_BACKEND");
  return name ? name : "UCX";
}

#define METADATA_MAX 65536 /* with one registration it takes less than 1 KiB */

struct end {
  void *agent, *options;
  char *buffer;
  uint64_t length;
};

/* An agent with registered memory. */
static void open_end(struct end *end, const char *name, uint64_t length, bool thread) {
  const struct agent_config config = {
      .progress_thread = thread, .workers = 1, .listen_delay_us = 100000};
  void *memories, *parameters, *backend, *list;
  load_api();
  works(api.create_configured_agent(name, &config, &end->agent), "agent");
  works(api.get_plugin_params(end->agent, backend_name(), &memories, &parameters), "no plugin");
  works(api.create_backend(end->agent, backend_name(), parameters, &backend), "backend");
  works(api.create_opt_args(&end->options), "options");
  end->length = length;
  end->buffer = aligned_alloc(4096, (length + 4095) / 4096 * 4096);
  need(end->buffer != NULL, "memory");
  memset(end->buffer, 1, length);
  works(api.create_reg_dlist(DRAM, &list), "list");
  works(api.reg_dlist_add_desc(list, (uintptr_t)end->buffer, length, 0, NULL, 0), "list");
  works(api.register_mem(end->agent, list, end->options), "register");
}

static struct sockaddr_in loopback(int port) {
  return (struct sockaddr_in){.sin_family = AF_INET,
                              .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* The second process: sends its buffer's address and its metadata to each that connects, in one
 * message. */
static _Noreturn void serve(uint64_t length) {
  struct end end;
  char line[64], message[METADATA_MAX];
  void *metadata;
  size_t size;
  struct sockaddr_in address = loopback(0);
  socklen_t room = sizeof address;
  snprintf(line, sizeof line, "target-%d", (int)getpid());
  open_end(&end, line, length, true);
  works(api.get_local_md(end.agent, &metadata, &size), "metadata");
  uint64_t buffer = (uintptr_t)end.buffer;
  need(size < sizeof message - sizeof buffer, "metadata");
  memcpy(message, &buffer, sizeof buffer);
  memcpy(message + sizeof buffer, metadata, size);
  size += sizeof buffer;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  need(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0,
       "listen");
  getsockname(listener, (struct sockaddr *)&address, &room);
  snprintf(line, sizeof line, "%d", ntohs(address.sin_port));
  say_line(line);
  for (;;) {
    int fd = accept(listener, NULL, NULL);
    need(fd >= 0 && send(fd, message, size, MSG_NOSIGNAL) == (ssize_t)size, "send");
    close(fd);
  }
}

struct target {
  char *name; /* of the agent */
  uint64_t buffer;
};

/* What a program does with a new peer before the first transfer. */
static struct target meet(struct end *end, const char *port) {
  char bytes[METADATA_MAX];
  size_t length = 0;
  ssize_t got;
  struct target target;
  struct sockaddr_in address = loopback(atoi(port));
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  need(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
  while ((got = recv(fd, bytes + length, sizeof bytes - length, 0)) > 0)
    length += (size_t)got;
  need(got == 0 && length > sizeof target.buffer && length < sizeof bytes, "metadata");
  close(fd);
  memcpy(&target.buffer, bytes, sizeof target.buffer);
  works(api.load_remote_md(end->agent, bytes + sizeof target.buffer, length - sizeof target.buffer,
                           &target.name),
        "load the metadata");
  return target;
}

/* Segments of `size` bytes at both ends, prepared once, as vLLM's connector does. */
struct lists {
  void *local, *remote;
  int *indices, *scattered;
};

static void *list_of(struct end *end, const char *name, uint64_t buffer, uint64_t count,
                     uint64_t size) {
  void *list, *prepared;
  works(api.create_xfer_dlist(DRAM, &list), "list");
  for (uint64_t i = 0; i < count; i++)
    works(api.xfer_dlist_add_desc(list, buffer + i * size, size, 0), "list");
  works(api.prep_xfer_dlist(end->agent, name, list, &prepared, end->options), "prepare");
  return prepared;
}

static struct lists prepare(struct end *end, const struct target *target, uint64_t count,
                            uint64_t size) {
  struct lists lists = {.indices = calloc(count, sizeof(int)),
                        .scattered = calloc(count, sizeof(int))};
  need(lists.indices && lists.scattered, "memory");
  for (uint64_t i = 0; i < count; i++) {
    lists.indices[i] = (int)i;
    lists.scattered[i] = (int)scattered(i, count);
  }
  lists.local = list_of(end, "", (uintptr_t)end->buffer, count, size);
  lists.remote = list_of(end, target->name, target->buffer, count, size);
  return lists;
}

static void *make(struct end *end, int operation, const struct lists *lists, uint64_t count) {
  void *request;
  works(api.make_xfer_req(end->agent, operation, lists->local, lists->indices, count, lists->remote,
                          lists->scattered, count, &request, end->options),
        "request");
  return request;
}

static void post(struct end *end, void *request) {
  int status = api.post_xfer_req(end->agent, request, end->options);
  works(status == IN_PROGRESS ? 0 : status, "post");
}

static void await(struct end *end, void *request) {
  int status;
  do
    status = api.get_xfer_status(end->agent, request);
  while (status == IN_PROGRESS);
  works(status, "write");
}

static void drop(struct end *end, void *request) {
  works(api.release_xfer_req(end->agent, request), "release");
  api.destroy_xfer_req(request);
}

/* Requests are made once and posted again, which costs NIXL least. */
static void by_write(struct end *end, const struct target *target, pid_t child, unsigned depth,
                     double seconds) {
  void *ring[DEPTH_MAX] = {NULL};
  uint64_t moved = 0;
  struct meter meter;
  int64_t warm = now_ns() + 200000000, stop = 0, now = 0;
  struct lists lists = prepare(end, target, 1, end->length);
  for (unsigned i = 0; !stop || now < stop; i = (i + 1) % depth) {
    if (ring[i]) {
      await(end, ring[i]);
      moved += end->length;
    } else
      ring[i] = make(end, WRITE, &lists, 1);
    post(end, ring[i]);
    now = now_ns();
    if (!stop && now > warm && moved > 0) {
      meter = meter_begin(child);
      moved = 0;
      stop = now + (int64_t)(seconds * 1e9);
    }
  }
  meter_end(&meter, moved);
}

static void by_segments(struct end *end, const struct target *target, pid_t child, uint64_t count,
                        double seconds) {
  uint64_t moved = 0;
  struct meter meter;
  int64_t stop = 0;
  struct lists lists = prepare(end, target, count, end->length / count);
  while (!stop || now_ns() < stop) {
    void *request = make(end, WRITE, &lists, count);
    post(end, request);
    await(end, request);
    drop(end, request);
    moved += end->length;
    if (!stop) { /* the first one connects */
      moved = 0;
      meter = meter_begin(child);
      stop = meter.began + (int64_t)(seconds * 1e9);
    }
  }
  meter_end(&meter, moved);
}

static double first(struct end *end, int argc, char **argv) {
  char port[64];
  pid_t child = start_child(argc, argv, port, sizeof port);
  int64_t began = now_ns();
  struct target target = meet(end, port);
  struct lists lists = prepare(end, &target, 1, end->length);
  void *request = make(end, WRITE, &lists, 1);
  post(end, request);
  await(end, request);
  double took = (double)(now_ns() - began) / 1e6;
  drop(end, request);
  api.invalidate_remote_md(end->agent, target.name);
  end_child(child);
  return took;
}

static void by_first(struct end *end, int argc, char **argv, size_t times) {
  double *took = calloc(times, sizeof *took);
  need(took != NULL, "memory");
  for (size_t i = 0; i < times; i++)
    took[i] = first(end, argc, argv);
  printf("%.4f\n", median_of(took, times));
}

static void by_latency(struct end *end, const struct target *target, size_t times) {
  double *took = calloc(times, sizeof *took);
  need(took != NULL, "memory");
  struct lists lists = prepare(end, target, 1, end->length);
  void *request = make(end, READ, &lists, 1);
  for (size_t i = 0; i < 2 * times; i++) { /* the first half warms up */
    int64_t began = now_ns();
    post(end, request);
    await(end, request);
    took[i % times] = (double)(now_ns() - began) / 1e3;
  }
  printf("%.4f\n", median_of(took, times));
}

static void by_submit(struct end *end, const struct target *target, uint64_t count, size_t times) {
  double *took = calloc(times, sizeof *took);
  need(took != NULL, "memory");
  struct lists lists = prepare(end, target, count, end->length / count);
  for (size_t i = 0; i <= times; i++) { /* the first one connects */
    int64_t began = now_ns();
    void *request = make(end, WRITE, &lists, count);
    post(end, request);
    took[i % times] = (double)(now_ns() - began) / 1e6;
    await(end, request);
    drop(end, request);
  }
  printf("%.4f\n", median_of(took, times));
}

int main(int argc, char **argv) {
  struct end end;
  char port[64];
  const char *how = argc > 3 ? argv[1] : "";
  bool submit = strcmp(how, "submit") == 0 && argc > 4;
  bool segments = (strcmp(how, "segments") == 0 && argc > 4) || submit;
  unsigned depth = strcmp(how, "write") == 0 && argc > 4 ? (unsigned)atoi(argv[3]) : 1;
  if (argc < 4 || depth < 1 || depth > DEPTH_MAX) {
    fprintf(stderr, "usage: nixl write SIZE DEPTH SECONDS | segments COUNT SIZE SECONDS |"
                    " first SIZE TIMES | latency SIZE TIMES | submit COUNT SIZE TIMES\n");
    return 2;
  }
  uint64_t count = segments ? parse_size(argv[2]) : 1;
  uint64_t length = count * parse_size(argv[segments ? 3 : 2]);
  if (is_child(argc, argv))
    serve(length);
  open_end(&end, "initiator", length, false);
  if (strcmp(how, "first") == 0) {
    by_first(&end, argc, argv, parse_size(argv[3]));
    _exit(fflush(stdout));
  }
  pid_t child = start_child(argc, argv, port, sizeof port);
  struct target target = meet(&end, port);
  if (submit)
    by_submit(&end, &target, count, parse_size(argv[4]));
  else if (strcmp(how, "latency") == 0)
    by_latency(&end, &target, parse_size(argv[3]));
  else if (segments)
    by_segments(&end, &target, child, count, atof(argv[4]));
  else
    by_write(&end, &target, child, depth, atof(argv[4]));
  end_child(child);
  _exit(fflush(stdout)); /* agents crash on exit where there is no GPU (1.5.1) */
}
