/* SPDX-License-Identifier: MIT */
#include "session.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "../command.h"
#include "fail.h"
#include "text.h"

/* Whether a TCP address has a port: colons within […] belong to an IPv6 address. */
static bool has_port(const char *text) {
  if (strncmp(text, "tcp://", strlen("tcp://")) == 0)
    text += strlen("tcp://");
  const char *bracket = strrchr(text, ']');
  return strchr(bracket ? bracket : text, ':') != NULL;
}

bool address_expand(const char *text, const char *port, char address[ADDRESS_MAX]) {
  bool has_scheme = strstr(text, "://") != NULL;
  if (text[strspn(text, "0123456789")] == '\0') /* "80" is more likely a port than host 0.0.0.80 */
    return false;
  bool tcp = !has_scheme || strncmp(text, "tcp://", strlen("tcp://")) == 0;
  bool complete = !tcp || has_port(text);
  int length = snprintf(address, ADDRESS_MAX, "%s%s%s%s", has_scheme ? "" : "tcp://", text,
                        complete ? "" : ":", complete ? "" : port);
  return length < ADDRESS_MAX;
}

static bool is_socket(const char *path, size_t length) {
  char start[ADDRESS_MAX];
  struct stat status;
  if (length >= sizeof start)
    return false;
  memcpy(start, path, length);
  start[length] = '\0';
  return stat(start, &status) == 0 && S_ISSOCK(status.st_mode);
}

static const char *skip_haul_scheme(const char *text) {
  size_t length = strlen("haul://");
  return strncmp(text, "haul://", length) == 0 ? text + length : text;
}

static bool is_directory(const char *text) {
  return strncmp(text, "etcd://", strlen("etcd://")) == 0 ||
         strncmp(text, "etcds://", strlen("etcds://")) == 0;
}

bool directory_parse(const char *text, char address[ADDRESS_MAX]) {
  text = skip_haul_scheme(text);
  const char *slash = is_directory(text) ? strchr(strstr(text, "://") + 3, '/') : NULL;
  size_t length = strlen(text);
  if (slash && text[length - 1] == '/')
    length--;
  if (!slash || slash + 1 >= text + length ||
      memchr(slash + 1, '/', length - (size_t)(slash + 1 - text)) || length >= ADDRESS_MAX)
    return false;
  snprintf(address, ADDRESS_MAX, "%.*s", (int)length, text);
  return true;
}

/* The last '/' of etcd://HOST/PREFIX/NODE/NAME; NULL for etcd://HOST/PREFIX/NODE. */
static const char *slash_after_node(const char *node) {
  const char *slash = strchr(node, '/');
  slash = slash ? strchr(slash + 1, '/') : NULL;
  return slash ? strchr(slash + 1, '/') : NULL;
}

/* The '/' before NAME, or NULL. */
static const char *name_slash(const char *text) {
  const char *scheme_end = strstr(text, "://");
  const char *node = scheme_end ? scheme_end + strlen("://") : text;
  if (is_directory(text))
    return slash_after_node(node);
  if (strncmp(text, "unix:///", strlen("unix:///")) != 0)
    return strchr(node, '/');
  const char *slash = strchr(node + 1, '/');
  while (slash && !is_socket(node, (size_t)(slash - node)))
    slash = strchr(slash + 1, '/');
  return slash;
}

static bool parse_node(const char *text, const char *end, struct target *target) {
  char node[ADDRESS_MAX];
  size_t length = (size_t)(end - text);
  if (length >= sizeof(node))
    return false;
  memcpy(node, text, length);
  node[length] = '\0';
  return address_expand(node, DEFAULT_PORT, target->address);
}

/* Decodes %XX; other text stays. */
static void unescape(const char *text, char *to) {
  for (; *text; to++) {
    unsigned byte;
    int length = 0;
    if (text[0] == '%' && sscanf(text + 1, "%2x%n", &byte, &length) == 1 && length == 2 && byte) {
      *to = (char)byte;
      text += 3;
    } else {
      *to = *text++;
    }
  }
  *to = '\0';
}

/* Parses etcd://HOST/PREFIX/NAME. The address itself names a region; any node that publishes it is
 * used. */
static bool parse_in_directory(const char *text, struct target *target) {
  const char *slash = strchr(strstr(text, "://") + 3, '/');
  slash = slash ? strchr(slash + 1, '/') : NULL;
  if (!slash || !slash[1] || strlen(slash + 1) >= sizeof target->unescaped)
    return false;
  unescape(slash + 1, target->unescaped);
  target->name = target->unescaped;
  return parse_node(text, text + strlen(text), target);
}

bool target_parse(const char *text, struct target *target) {
  text = skip_haul_scheme(text);
  const char *slash = name_slash(text);
  if (!slash && is_directory(text))
    return parse_in_directory(text, target);
  if (!slash && strncmp(text, "unix:///", strlen("unix:///")) == 0)
    slash = strrchr(text + strlen("unix:///"), '/');
  if (!slash || slash == text || !slash[1])
    return false;
  target->name = slash + 1;
  return parse_node(text, slash, target);
}

bool target_or_node_parse(const char *text, struct target *target) {
  text = skip_haul_scheme(text);
  const char *slash = name_slash(text);
  target->name = slash ? slash + 1 : NULL;
  return parse_node(text, slash ? slash : text + strlen(text), target);
}

haul_deadline connect_deadline(int64_t timeout_ns) {
  return haul_deadline_in(timeout_ns ? timeout_ns : CONNECT_TIMEOUT_NS);
}

int session_open(struct session *session, const struct haul_node_config *config,
                 const char *address, int64_t timeout_ns) {
  *session = (struct session){NULL, NULL, NULL};
  if (haul_node_open(config, &session->node))
    return fail_library("cannot open a node");
  if (haul_peer_connect(session->node, address, connect_deadline(timeout_ns), &session->peer))
    return fail_library("cannot connect to %s", address);
  return EXIT_DONE;
}

int session_lookup(struct session *session, const char *name, int64_t timeout_ns) {
  if (haul_peer_lookup(session->peer, name, connect_deadline(timeout_ns), &session->remote))
    return fail_library("cannot find the region '%s'", name);
  return EXIT_DONE;
}

bool session_is_file(struct session *session, const char *name, int64_t timeout_ns) {
  haul_remote *remote = NULL;
  if (!strchr(name, '/'))
    return false;
  int code = haul_peer_lookup(session->peer, name, connect_deadline(timeout_ns), &remote);
  haul_remote_release(remote);
  return code == HAUL_ENAME || code == HAUL_EINVAL;
}

void session_close(struct session *session) {
  haul_remote_release(session->remote);
  haul_peer_close(session->peer);
  haul_node_close(session->node);
  *session = (struct session){NULL, NULL, NULL};
}

struct region_list {
  haul_peer *peer;
  haul_deadline until;
};

static int list_regions(void *context, void *list, size_t *count) {
  const struct region_list *regions = context;
  return haul_peer_list(regions->peer, regions->until, list, count);
}

int session_list(const struct session *session, int64_t timeout_ns, struct haul_published **entries,
                 size_t *count) {
  struct region_list regions = {session->peer, connect_deadline(timeout_ns)};
  *entries = load_list(list_regions, &regions, sizeof(**entries), count);
  return *entries ? EXIT_DONE : fail_library("cannot list the regions");
}

haul_node *open_client_node(void) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  haul_node *node = NULL;
  config.progress = HAUL_PROGRESS_CALLER;
  if (haul_node_open(&config, &node))
    fail_library("cannot open a node");
  return node;
}

struct place_text place_text(struct haul_place place) {
  struct place_text result;
  haul_place_format(place, result.text, sizeof(result.text));
  return result;
}

const char *rights_text(unsigned rights) {
  static const char *const names[] = {"none", "read", "write", "read-write"};
  return names[rights & (HAUL_READ | HAUL_WRITE)];
}

const char *operation_text(int operation) {
  static const char *const names[] = {"write", "read", "fetch-add", "compare-swap"};
  return operation >= HAUL_OP_WRITE && operation <= HAUL_OP_COMPARE_SWAP
             ? names[operation - HAUL_OP_WRITE]
             : "?";
}
