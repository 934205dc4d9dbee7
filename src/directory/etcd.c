/* SPDX-License-Identifier: MIT
 * The directory in etcd, through the v3 API of its HTTP gateway: bytes are base64, 64-bit numbers
 * are strings, zeros are omitted. etcd.io/docs/v3.4/dev-guide/api_grpc_gateway */
#include "directory/etcd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT_DEFAULT "2379"

static bool is_prefix(const char *text) {
  for (const char *at = text; *at; at++)
    if (*at <= ' ' || *at > '~' || strchr("/%?#", *at))
      return false;
  return *text && strlen(text) < sizeof((struct directory *)NULL)->prefix;
}

static bool is_port(const char *text) {
  return *text && strspn(text, "0123456789") == strlen(text) && strlen(text) <= 5 &&
         atoi(text) >= 1 && atoi(text) <= 65535;
}

/* "HOST[:PORT]" to "http://HOST:PORT". */
static bool member_url(const char *scheme, const char *host, char *url, size_t size) {
  const char *bracket = strrchr(host, ']'), *port = strchr(bracket ? bracket : host, ':');
  int length = snprintf(url, size, "%s://%s%s", scheme, host, port ? "" : ":" PORT_DEFAULT);
  return *host && port != host && !strpbrk(host, "@?# \\") && (!port || is_port(port + 1)) &&
         length < (int)size;
}

/* The members and the prefix of "etcd://HOST[:PORT][,…]/PREFIX"; modifies `text`. */
static bool parse_address(char *text, char urls[8][160], const char *members[9], char prefix[128]) {
  bool secure = strncmp(text, "etcds://", 8) == 0;
  char *hosts = text + (secure ? 8 : 7), *next = NULL, *slash = strchr(hosts, '/');
  unsigned count = 0;
  if (slash && slash[1] && text[strlen(text) - 1] == '/')
    text[strlen(text) - 1] = '\0';
  if (!slash || !is_prefix(slash + 1))
    return false;
  strcpy(prefix, slash + 1);
  *slash = '\0';
  for (char *host = strtok_r(hosts, ",", &next); host; host = strtok_r(NULL, ",", &next)) {
    if (count == 8 || !member_url(secure ? "https" : "http", host, urls[count], sizeof urls[0]))
      return false;
    members[count] = urls[count];
    members[++count] = NULL;
  }
  return count > 0;
}

static int open_directory(const struct directory_library *library, const char *url,
                          const char *login_text, int64_t liveness, const _Atomic bool *stop,
                          struct directory **out) {
  char urls[8][160];
  const char *members[9];
  struct login login;
  if (library->size != sizeof *library)
    return library->error(HAUL_ENOTSUP, 0, DIRECTORY_FILE, "install both from one release",
                          DIRECTORY_FILE " and haul's library are of different releases");
  struct directory *directory = calloc(1, sizeof *directory);
  char *text = strdup(url);
  int code = 0;
  if (!directory || !text) {
    free(directory);
    free(text);
    return library->code(HAUL_ENOMEM, "directory");
  }
  directory->library = library;
  if (!parse_address(text, urls, members, directory->prefix))
    code = library->error(HAUL_EADDRESS, 0, url,
                          "pass an address: etcd://HOST[:PORT][,HOST[:PORT]...]/PREFIX",
                          "not the address of a directory");
  else
    code = login_parse(library, login_text, &login);
  if (code == 0) {
    code = http_open(library, members, &login, liveness, stop, &directory->http);
    login_forget(&login);
  }
  free(text);
  if (code) {
    free(directory);
    return code;
  }
  *out = directory;
  return 0;
}

static void close_directory(struct directory *directory) {
  if (!directory)
    return;
  http_close(directory->http);
  free(directory);
}

static void own_host(struct directory *directory, char *host, size_t size) {
  http_own_host(directory->http, host, size);
}

int directory_no_memory(const struct directory *directory) {
  return directory->library->code(HAUL_ENOMEM, "directory");
}

json_t *range_of(const char *from, const char *to) {
  json_t *range = json_pack("{so}", "key", json_bytes(from, strlen(from)));
  if (range && to && json_object_set_new(range, "range_end", json_bytes(to, strlen(to))) != 0) {
    json_decref(range);
    return NULL;
  }
  return range;
}

bool entry_of(const struct directory *directory, const json_t *pair,
              struct haul_directory_entry *entry) {
  size_t key_length, value_length;
  errno = 0;
  char *key = bytes_of_json(json_object_get(pair, "key"), &key_length);
  char *value = bytes_of_json(json_object_get(pair, "value"), &value_length);
  memset(entry, 0, sizeof *entry);
  bool valid = key && value && key_parse(directory->prefix, key, key_length, entry) &&
               value_parse(directory->library, value, value_length, entry);
  int error = errno;
  free(key);
  free(value);
  errno = error;
  return valid;
}

static json_t *put_of(const struct directory *directory, int64_t lease,
                      const struct haul_directory_entry *entry) {
  char key[KEY_MAX];
  key_of(directory->prefix, entry, key);
  char *value = value_of(directory->library, entry);
  json_t *put = value ? json_pack("{so, so, so}", "key", json_bytes(key, strlen(key)), "value",
                                  json_bytes(value, strlen(value)), "lease", json_number(lease))
                      : NULL;
  free(value);
  return put;
}

/* The condition `target` of the key == number; `field` is the target's name in JSON. */
static json_t *compare_of(const char *key, const char *target, const char *field, int64_t number) {
  return json_pack("[{ss, ss, so, so}]", "target", target, "result", "EQUAL", "key",
                   json_bytes(key, strlen(key)), field, json_number(number));
}

/* Sends operations as one transaction, which takes over both values. An empty `compare` is no
 * condition. NULL, as for all values here, means that there was no memory. */
static int transact(struct directory *directory, json_t *compare, json_t *operations, int64_t until,
                    json_t **response) {
  json_t *body = json_pack("{so, so}", "compare", compare, "success", operations);
  return body ? http_post(directory->http, "/v3/kv/txn", body, until, response)
              : directory_no_memory(directory);
}

/* The same if the node's entry still has this lease; else HAUL_ESTALE. 1 as of module->put. Fewer
 * than `count` operations: there was no memory for the others. */
static int transact_as(struct directory *directory, int64_t lease,
                       const struct haul_directory_entry *of, json_t *operations, size_t count,
                       int64_t until) {
  struct haul_directory_entry node = {.kind = HAUL_DIRECTORY_NODE};
  char key[KEY_MAX];
  json_t *response = NULL;
  if (json_array_size(operations) != count) {
    json_decref(operations);
    return directory_no_memory(directory);
  }
  memcpy(node.node, of->node, sizeof node.node);
  key_of(directory->prefix, &node, key);
  int code =
      transact(directory, compare_of(key, "LEASE", "lease", lease), operations, until, &response);
  if (code)
    return code;
  bool succeeded = json_is_true(json_object_get(response, "succeeded"));
  json_decref(response);
  return succeeded ? http_is_repeated(directory->http)
                   : directory->library->error(
                         HAUL_ESTALE, 0, node.node, NULL,
                         "the entry in the directory does not belong to this node any more");
}

/* False: no memory. */
static bool collect(const struct directory *directory, const json_t *range,
                    struct haul_directory_entry *entries, size_t room, size_t *count) {
  const json_t *pairs = json_object_get(range, "kvs");
  for (size_t i = 0; i < json_array_size(pairs) && *count < DIRECTORY_FOUND; i++) {
    struct haul_directory_entry entry;
    if (entry_of(directory, json_array_get(pairs, i), *count < room ? &entries[*count] : &entry))
      ++*count;
    else if (errno == ENOMEM)
      return false;
  }
  return true;
}

/* The query for the node of this name, then for the regions of this name. NULL: no memory. */
static json_t *both_of(const struct directory *directory, const char *name) {
  struct haul_directory_entry node = {.kind = HAUL_DIRECTORY_NODE};
  char key[KEY_MAX], end[KEY_MAX], word[3 * sizeof((struct haul_directory_entry *)NULL)->name + 1];
  char node_key[KEY_MAX];
  bool is_node = strlen(name) < sizeof node.node;
  if (is_node) {
    strcpy(node.node, name);
    key_of(directory->prefix, &node, node_key);
  }
  word_escape(name, word, sizeof word);
  snprintf(key, sizeof key, "%s/name/%s/", directory->prefix, word);
  /* '0' is the byte after '/'. */
  snprintf(end, sizeof end, "%s/name/%s0", directory->prefix, word);
  json_t *by_name = range_of(key, end);
  bool whole = json_object_set_new(by_name, "limit", json_integer(DIRECTORY_FOUND - 1)) == 0;
  json_t *operations = json_pack("[{so}]", "request_range", by_name);
  if (is_node)
    whole &= json_array_insert_new(
                 operations, 0, json_pack("{so}", "request_range", range_of(node_key, NULL))) == 0;
  if (whole)
    return operations;
  json_decref(operations);
  return NULL;
}

static int etcd_find(struct directory *directory, const char *word, int64_t until,
                     struct haul_directory_entry *entries, size_t *count) {
  char name[sizeof entries->name];
  size_t room = *count;
  json_t *response = NULL;
  if (!word_unescape(word, strlen(word), name, sizeof name))
    return directory->library->error(HAUL_EADDRESS, 0, word, "write '%' as %25 and '/' as %2F",
                                     "invalid escape in a name");
  int code = transact(directory, json_array(), both_of(directory, name), until, &response);
  if (code)
    return code;
  *count = 0;
  const json_t *responses = json_object_get(response, "responses");
  bool whole = true;
  for (size_t i = 0; whole && i < json_array_size(responses); i++)
    whole = collect(directory, json_object_get(json_array_get(responses, i), "response_range"),
                    entries, room, count);
  json_decref(response);
  if (!whole)
    return directory_no_memory(directory);
  if (*count)
    return 0;
  const char *member = http_member(directory->http);
  return directory->library->error(HAUL_ENAME, 0, name,
                                   directory->library->hint("list the entries: haul ls etcd%s/%s",
                                                            member + strlen("http"),
                                                            directory->prefix),
                                   "no node and no region of this name in the directory");
}

static int etcd_lease(struct directory *directory, unsigned seconds, int64_t until, int64_t *out) {
  json_t *response = NULL;
  int code = http_post(directory->http, "/v3/lease/grant", json_pack("{si}", "TTL", (int)seconds),
                       until, &response);
  if (code)
    return code;
  *out = number_of_json(json_object_get(response, "ID"));
  json_decref(response);
  return *out ? 0
              : directory->library->error(HAUL_EPROTO, 0, http_member(directory->http), NULL,
                                          "etcd granted no lease");
}

static json_t *lease_of(int64_t number) {
  return json_pack("{so}", "ID", json_number(number));
}

static int etcd_renew(struct directory *directory, int64_t number,
                      const struct haul_directory_entry *node, int64_t until) {
  json_t *response = NULL;
  int code = http_post(directory->http, "/v3/lease/keepalive", lease_of(number), until, &response);
  if (code)
    return code;
  bool lives = number_of_json(json_object_get(json_object_get(response, "result"), "TTL")) > 0;
  json_decref(response);
  if (!lives)
    return directory->library->error(HAUL_ESTALE, 0, http_member(directory->http), NULL,
                                     "the lease expired");
  code = transact_as(directory, number, node, json_array(), 0, until);
  return code > 0 ? 0 : code; /* a repeat does no harm */
}

static void etcd_end_lease(struct directory *directory, int64_t number, int64_t until) {
  json_t *response = NULL;
  if (http_post(directory->http, "/v3/lease/revoke", lease_of(number), until, &response) == 0)
    json_decref(response);
}

static bool share_address(const struct haul_directory_entry *one,
                          const struct haul_directory_entry *other) {
  for (unsigned i = 0; i < one->address_count; i++)
    for (unsigned j = 0; j < other->address_count; j++)
      if (strcmp(one->addresses[i], other->addresses[j]) == 0)
        return true;
  return false;
}

/* An address has one listener at a time in a network namespace. So a node that listens on the
 * entry's address there has replaced the entry's node. Advertised addresses (network 0) prove
 * nothing. */
static bool is_successor(const struct haul_directory_entry *node,
                         const struct haul_directory_entry *of) {
  return memcmp(node->id, of->id, 16) == 0 ||
         (node->network && node->network == of->network && memcmp(node->boot, of->boot, 16) == 0 &&
          share_address(node, of));
}

/* Reads the entry under the node's key. *revision 0: the key does not exist. */
static int read_entry(struct directory *directory, const char *key, int64_t until,
                      struct haul_directory_entry *entry, int64_t *revision) {
  json_t *response = NULL, *range = range_of(key, NULL);
  *revision = 0;
  memset(entry, 0, sizeof *entry);
  if (!range)
    return directory_no_memory(directory);
  int code = http_post(directory->http, "/v3/kv/range", range, until, &response);
  if (code)
    return code;
  const json_t *pair = json_array_get(json_object_get(response, "kvs"), 0);
  if (pair)
    *revision = number_of_json(json_object_get(pair, "mod_revision"));
  bool no_entry = pair && !entry_of(directory, pair, entry);
  if (no_entry && errno == ENOMEM)
    code = directory_no_memory(directory); /* it may be another node's */
  if (no_entry)
    memset(entry, 0, sizeof *entry);
  json_decref(response);
  return code;
}

/* CHANGED: the entry is another one now than the one that was read. */
enum claim { CLAIMED, TAKEN, CHANGED };

/* Replaces the present entry, if it may be replaced and has not changed since it was read. */
static int try_claim(struct directory *directory, int64_t number,
                     const struct haul_directory_entry *node, int64_t until,
                     struct haul_directory_entry *present, enum claim *claim) {
  char key[KEY_MAX];
  int64_t revision;
  json_t *response = NULL;
  key_of(directory->prefix, node, key);
  int code = read_entry(directory, key, until, present, &revision);
  /* A value that is not an entry may be replaced. */
  bool replaceable = revision == 0 || !present->kind || is_successor(node, present);
  *claim = TAKEN;
  if (code || !replaceable)
    return code;
  json_t *compare = compare_of(key, "MOD", "mod_revision", revision);
  json_t *put = json_pack("[{so}]", "request_put", put_of(directory, number, node));
  code = transact(directory, compare, put, until, &response);
  *claim = json_is_true(json_object_get(response, "succeeded")) ? CLAIMED : CHANGED;
  json_decref(response);
  return code;
}

/* A transaction whose response was lost may have changed the entry. Then the next try finds this
 * node's own entry; its response may be lost, too. */
static int etcd_claim(struct directory *directory, int64_t number,
                      const struct haul_directory_entry *node, int64_t until) {
  struct haul_directory_entry present;
  enum claim claim;
  int code;
  do
    code = try_claim(directory, number, node, until, &present, &claim);
  while (code == 0 && claim == CHANGED);
  if (code || claim == CLAIMED)
    return code;
  return directory->library->error(
      HAUL_EEXIST, 0, node->node, "give this node another name: haul serve --name NAME",
      "another node in the directory has this name (%s)",
      present.address_count ? present.addresses[0] : "address unknown");
}

static int etcd_put(struct directory *directory, int64_t number,
                    const struct haul_directory_entry *entries, size_t count, int64_t until) {
  json_t *operations = json_array();
  for (size_t i = 0; i < count; i++)
    json_array_append_new(operations,
                          json_pack("{so}", "request_put", put_of(directory, number, &entries[i])));
  return transact_as(directory, number, entries, operations, count, until);
}

static int etcd_drop(struct directory *directory, int64_t number,
                     const struct haul_directory_entry *entries, size_t count, int64_t until) {
  json_t *operations = json_array();
  for (size_t i = 0; i < count; i++) {
    char key[KEY_MAX];
    key_of(directory->prefix, &entries[i], key);
    json_array_append_new(operations,
                          json_pack("{so}", "request_delete_range", range_of(key, NULL)));
  }
  return transact_as(directory, number, entries, operations, count, until);
}

extern const struct directory_module haul_directory_module;
__attribute__((visibility("default"))) const struct directory_module haul_directory_module = {
    .size = sizeof haul_directory_module,
    .open = open_directory,
    .close = close_directory,
    .find = etcd_find,
    .walk_open = walk_open,
    .walk_next = walk_next,
    .walk_close = walk_close,
    .lease = etcd_lease,
    .renew = etcd_renew,
    .end = etcd_end_lease,
    .claim = etcd_claim,
    .put = etcd_put,
    .drop = etcd_drop,
    .own_host = own_host,
};
