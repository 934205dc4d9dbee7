/* SPDX-License-Identifier: MIT
 * Addresses and NODE/NAME targets of the command line, and sessions: a node connected to a peer. */
#ifndef HAUL_COMMAND_SESSION_H
#define HAUL_COMMAND_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include <haul/haul.h>

#define ADDRESS_MAX        256
#define DEFAULT_PORT       "7420"
#define CONNECT_TIMEOUT_NS INT64_C(10000000000)

/* Expands "host:port" to a tcp address, and adds `port` to "host" and "tcp://host". False: the text
 * is empty, a bare number or too long. */
bool address_expand(const char *text, const char *port, char address[ADDRESS_MAX]);

/* Copies etcd://HOST/PREFIX; false if the text is not of that form, for example has a NODE. */
bool directory_parse(const char *text, char address[ADDRESS_MAX]);

struct target {
  char address[ADDRESS_MAX];
  const char *name; /* points into the parsed text or to `unescaped` */
  char unescaped[256];
};

/* Splits NODE/NAME at the first '/' after the address. In unix:///PATH/NAME, PATH is the first
 * prefix that is a socket, or else ends at the last '/'. In etcd://HOST/PREFIX/NODE/NAME, NODE is
 * optional. "haul://" before NODE is skipped. False when either part is missing. */
bool target_parse(const char *text, struct target *target);

/* Splits NODE or NODE/NAME: `name` is NULL without a '/', and "" for NODE/. In unix:///PATH/NAME,
 * PATH must be a socket. False for an invalid address. */
bool target_or_node_parse(const char *text, struct target *target);

/* In `timeout_ns` from now; 0 means CONNECT_TIMEOUT_NS. */
haul_deadline connect_deadline(int64_t timeout_ns);

struct session {
  haul_node *node;
  haul_peer *peer;
  haul_remote *remote; /* NULL until session_lookup */
};

/* Opens a node and connects it. `config` may be NULL; `timeout_ns` as above.
 * Release with session_close, also after a failure. Returns an exit status. */
int session_open(struct session *session, const struct haul_node_config *config,
                 const char *address, int64_t timeout_ns);
int session_lookup(struct session *session, const char *name, int64_t timeout_ns);
/* Whether the name is EXPORT/PATH of an exported file: it has a '/' and no region has it. Other
 * failures are left to session_lookup. */
bool session_is_file(struct session *session, const char *name, int64_t timeout_ns);
void session_close(struct session *session);

/* Lists the published regions; the caller frees *entries. `timeout_ns` as in session_open. Returns
 * an exit status. */
int session_list(const struct session *session, int64_t timeout_ns, struct haul_published **entries,
                 size_t *count);

/* Opens a node without thread and listener. NULL after an error, which has been printed. */
haul_node *open_client_node(void);

struct place_text {
  char text[16];
};
struct place_text place_text(struct haul_place place);

const char *rights_text(unsigned rights);
const char *operation_text(int operation); /* of enum haul_operation; "?": another one */

#endif
