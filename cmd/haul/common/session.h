/* SPDX-License-Identifier: MIT
 *
 * From what the user typed to a connected peer: addresses, NODE/NAME targets, and the handles that
 * go with them.
 */
#ifndef HAUL_COMMAND_SESSION_H
#define HAUL_COMMAND_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include <haul/haul.h>

#define ADDRESS_MAX        256
#define DEFAULT_PORT       "7420"
#define CONNECT_TIMEOUT_NS INT64_C(10000000000)

/* Expands an address: "host:port" is short for tcp, and "host" and "tcp://host" for this port.
 * False when it is empty or too long. */
bool address_expand(const char *text, const char *port, char address[ADDRESS_MAX]);

/* Whether it begins as a directory's address does; and that of one, without NODE behind its prefix:
 * false where it is none. */
bool is_directory(const char *text);
bool directory_parse(const char *text, char address[ADDRESS_MAX]);

struct target {
  char address[ADDRESS_MAX];
  const char *name; /* lies within the text that was parsed, or here: */
  char unescaped[256];
};

/* Splits NODE/NAME. NAME begins behind the first '/' that is none of the address: of
 * unix:///PATH/NAME behind the first PATH that is a socket, or where there is none behind the last
 * '/'; of etcd://HOST/PREFIX/NODE/NAME behind NODE, which may be left out. "haul://" before NODE is
 * as good as nothing. False when either is missing. */
bool target_parse(const char *text, struct target *target);

/* The same of NODE or NODE/NAME: `name` is NULL, or what is behind the '/', which may be "". Of
 * unix:///PATH the name begins behind a socket, or is not there. False when it is no address. */
bool target_or_node_parse(const char *text, struct target *target);

struct session {
  haul_node *node;
  haul_peer *peer;
  haul_remote *remote; /* NULL until session_lookup */
};

/* Opens a node and connects it, and says why where it cannot. `config` may be NULL; `timeout_ns` 0
 * takes the default. Release with session_close, also after a failure. Returns an exit status. */
int session_open(struct session *session, const struct haul_node_config *config,
                 const char *address, int64_t timeout_ns);
int session_lookup(struct session *session, const char *name, int64_t timeout_ns);
/* Whether that region is there, where its name may be an exported file's, EXPORT/PATH, as well.
 * session_lookup says what else is wrong. */
bool session_is_file(struct session *session, const char *name, int64_t timeout_ns);
void session_close(struct session *session);

/* What the peer publishes, *count entries; the caller frees *entries. Returns an exit status. */
int session_list(const struct session *session, struct haul_published **entries, size_t *count);

/* A node that reaches nobody: no thread, no listener. NULL after an error, which was printed. */
haul_node *open_quiet_node(void);

struct place_text {
  char text[16];
};
struct place_text place_text(struct haul_place place);

const char *rights_text(unsigned rights);

#endif
