/* SPDX-License-Identifier: MIT
 * The counters of haul_counter(3) over HTTP, by the conventions of Prometheus: prefix haul_, units
 * as suffix, _total for counters, labels for paths. Counters of single peers are omitted, because
 * each peer that ever connected would be a series of its own; haul top prints them.
 *
 * A server thread of libmicrohttpd listens on loopback only, because HTTP has no authentication
 * here. */
#include <errno.h>
#include <haul/metrics.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS   16u
#define SECONDS       10u /* idle time of a connection */
#define REQUEST_BYTES 8192u

/* Values that rise and fall; all others are counters. */
static const char *const gauges[] = {
    "dpdk.objects_free",  "node.peers",          "node.published",
    "node.transfers",     "pool.bytes",          "rdma.cache.bytes",
    "rdma.cache.entries", "rdma.receives.bytes", "rdma.receives.unshared",
    "staging.bytes",      "staging.limit",       "node.transfers_bytes"};

/* Counters whose metric has a clearer name. */
static const char *const names[][2] = {{"node.peers", "peers"},
                                       {"node.published", "regions"},
                                       {"node.transfers", "transfers"},
                                       {"node.transfers_bytes", "transfers_memory_bytes"},
                                       {"node.transfers_posted", "transfers_posted"},
                                       {"node.transfers_failed", "transfers_failed"},
                                       {"node.slices_held", "slices_held"},
                                       {"node.slices_retried", "slices_retried"},
                                       {"staging.limit", "staging_limit_bytes"}};

/* Counters of a path: metric, name and value of the label. */
static const struct {
  const char *what, *metric, *label, *value, *help;
} of_path[] = {
    {"writes", "path_slices", "operation", "write", "Slices that ended well"},
    {"reads", "path_slices", "operation", "read", NULL},
    {"atomics", "path_slices", "operation", "atomic", NULL},
    {"served", "path_slices", "operation", "served", NULL},
    {"bytes_out", "path_bytes", "direction", "out",
     "Bytes of slices by direction, requested here or served"},
    {"bytes_in", "path_bytes", "direction", "in", NULL},
    {"served_out", "path_bytes", "direction", "served_out", NULL},
    {"served_in", "path_bytes", "direction", "served_in", NULL},
    {"errors", "path_errors", NULL, NULL, "Slices that failed"},
};

#define OF_PATH (sizeof of_path / sizeof of_path[0])
#define PATHS   8

struct sample {
  char path[16];
  uint64_t values[OF_PATH];
};

struct text {
  FILE *out;
  struct sample paths[PATHS];
  unsigned count;
};

static void write_head(FILE *out, const char *metric, const char *suffix, const char *type,
                       const char *help) {
  fprintf(out, "# HELP haul_%s%s %s.\n# TYPE haul_%s%s %s\n", metric, suffix, help, metric, suffix,
          type);
}

static void metric_of(const char *name, char metric[64]) {
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(names[i][0], name) == 0)
      name = names[i][1];
  snprintf(metric, 64, "%s", name);
  for (char *at = metric; *at; at++)
    if (*at == '.')
      *at = '_';
}

/* "path.tcp.bytes_out" */
static void keep_path(struct text *text, const char *name, uint64_t value) {
  const char *path = name + strlen("path."), *dot = strchr(path, '.');
  struct sample *sample = text->paths;
  if (!dot || (size_t)(dot - path) >= sizeof sample->path)
    return;
  char own[sizeof sample->path];
  snprintf(own, sizeof own, "%.*s", (int)(dot - path), path);
  while (sample < text->paths + text->count && strcmp(sample->path, own) != 0)
    sample++;
  if (sample == text->paths + PATHS)
    return;
  if (sample == text->paths + text->count) {
    memset(sample, 0, sizeof *sample);
    memcpy(sample->path, own, sizeof own);
    text->count++;
  }
  for (size_t i = 0; i < OF_PATH; i++)
    if (strcmp(of_path[i].what, dot + 1) == 0)
      sample->values[i] = value;
}

static void write_counter(void *user, const char *name, uint64_t value) {
  struct text *text = user;
  char metric[64], help[128];
  if (strncmp(name, "peer.", 5) == 0)
    return;
  if (strncmp(name, "path.", 5) == 0) {
    keep_path(text, name, value);
    return;
  }
  bool gauge = false;
  for (size_t i = 0; i < sizeof gauges / sizeof gauges[0]; i++)
    gauge |= strcmp(gauges[i], name) == 0;
  metric_of(name, metric);
  snprintf(help, sizeof help, "%s of haul_counter(3)", name);
  write_head(text->out, metric, gauge ? "" : "_total", gauge ? "gauge" : "counter", help);
  fprintf(text->out, "haul_%s%s %" PRIu64 "\n", metric, gauge ? "" : "_total", value);
}

static void write_paths(const struct text *text) {
  for (size_t i = 0; i < OF_PATH; i++) {
    if (of_path[i].help)
      write_head(text->out, of_path[i].metric, "_total", "counter", of_path[i].help);
    for (unsigned j = 0; j < text->count; j++) {
      fprintf(text->out, "haul_%s_total{path=\"%s\"", of_path[i].metric, text->paths[j].path);
      if (of_path[i].label)
        fprintf(text->out, ",%s=\"%s\"", of_path[i].label, of_path[i].value);
      fprintf(text->out, "} %" PRIu64 "\n", text->paths[j].values[i]);
    }
  }
}

/* Writes the node's counters in Prometheus' text format, version 0.0.4. */
static void metrics_write(haul_node *node, FILE *out) {
  struct text text = {.out = out};
  write_head(out, "build_info", "", "gauge", "The version of the library");
  fprintf(out, "haul_build_info{version=\"%s\"} 1\n", haul_version());
  haul_counter_list(node, write_counter, &text);
  write_paths(&text);
}

struct metrics {
  haul_node *node;
  struct MHD_Daemon *daemon;
};

static enum MHD_Result respond(struct MHD_Connection *connection, unsigned status, const char *type,
                               char *text, size_t length, enum MHD_ResponseMemoryMode mode) {
  struct MHD_Response *response = MHD_create_response_from_buffer(length, text, mode);
  if (!response) {
    if (mode == MHD_RESPMEM_MUST_FREE)
      free(text);
    return MHD_NO;
  }
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  enum MHD_Result result = MHD_queue_response(connection, status, response);
  MHD_destroy_response(response);
  return result;
}

static enum MHD_Result respond_error(struct MHD_Connection *connection, unsigned status,
                                     const char *text) {
  return respond(connection, status, "text/plain", (char *)(uintptr_t)text, strlen(text),
                 MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **request) {
  struct metrics *metrics = user;
  char *text = NULL;
  size_t length = 0;
  (void)version, (void)upload, (void)request;
  if (*upload_size > 0) {
    *upload_size = 0;
    return MHD_YES;
  }
  if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
    return respond_error(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET /metrics\n");
  if (strcmp(url, "/metrics") != 0)
    return respond_error(connection, MHD_HTTP_NOT_FOUND, "not found; see /metrics\n");
  FILE *out = open_memstream(&text, &length);
  if (!out)
    return MHD_NO;
  metrics_write(metrics->node, out);
  if (fclose(out) != 0) {
    free(text);
    return MHD_NO;
  }
  return respond(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text, length,
                 MHD_RESPMEM_MUST_FREE);
}

static void close_metrics(struct metrics *metrics) {
  if (!metrics)
    return;
  MHD_stop_daemon(metrics->daemon); /* safe on NULL */
  free(metrics);
}

static int open_metrics(haul_node *node, unsigned short *port, struct metrics **out) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct metrics *metrics = calloc(1, sizeof *metrics);
  if (!metrics)
    return ENOMEM;
  metrics->node = node;
  errno = 0;
  metrics->daemon = MHD_start_daemon(
      MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL, NULL, on_request, metrics,
      MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&address, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS,
      MHD_OPTION_CONNECTION_TIMEOUT, SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      (size_t)REQUEST_BYTES, MHD_OPTION_END);
  const union MHD_DaemonInfo *info =
      metrics->daemon ? MHD_get_daemon_info(metrics->daemon, MHD_DAEMON_INFO_BIND_PORT) : NULL;
  if (!info) {
    int failed = errno ? errno : EADDRINUSE;
    close_metrics(metrics);
    return failed;
  }
  *port = info->port;
  *out = metrics;
  return 0;
}

extern const struct haul_metrics haul_metrics;
__attribute__((visibility("default")))
const struct haul_metrics haul_metrics = {open_metrics, close_metrics};
