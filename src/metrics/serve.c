/* SPDX-License-Identifier: MIT
 * A server thread of libmicrohttpd. It listens on loopback only, because HTTP has no
 * authentication here. */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "metrics/metrics.h"

#define CONNECTIONS   16u
#define SECONDS       10u /* idle time of a connection */
#define REQUEST_BYTES 8192u

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
  MHD_stop_daemon(metrics->daemon);
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
    if (metrics->daemon)
      MHD_stop_daemon(metrics->daemon);
    free(metrics);
    return failed;
  }
  *port = info->port;
  *out = metrics;
  return 0;
}

extern const struct haul_metrics haul_metrics;
__attribute__((visibility("default")))
const struct haul_metrics haul_metrics = {open_metrics, close_metrics};
