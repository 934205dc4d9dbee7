/* SPDX-License-Identifier: MIT
 * A peer made by hand: it speaks the protocol's bytes over plain sockets, so that it can break
 * every rule. Blocking calls; each aborts the test after some seconds rather than hang. */
#ifndef HAUL_TESTS_RAW_H
#define HAUL_TESTS_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/control.h"
#include "node/handshake.h"
#include "node/node.h"

/* A connection without a word said. */
int raw_connect(const char *address);
/* A listening socket for a node to connect to. */
int raw_listen(const char *address);
int raw_accept(int listener);
/* Takes the hello of a connection that was accepted, and welcomes it, as one of this host or of
 * another; false when it ended. */
bool raw_welcome(int fd, bool same_host, struct hello *hello);
/* False when the other side ended the connection. */
bool raw_send(int fd, const void *bytes, size_t length);
bool raw_receive(int fd, void *bytes, size_t length);
/* Throws away what still comes; true when the other side ended the connection within the time. */
bool raw_ended(int fd, int64_t within_ns);

struct hello raw_hello(enum role role);
/* Sends the hello and reads the welcome; false when the connection ended instead. */
bool raw_greet(int fd, const struct hello *hello, struct welcome *welcome);
/* A control connection that was accepted, and ready. */
int raw_peer(const char *address, struct welcome *welcome);
/* A channel of it; -1 when it was refused. */
int raw_channel(const char *address, const struct welcome *welcome, const char *transport,
                uint16_t index);

void raw_control_head(uint8_t *head, uint16_t type, uint32_t length, uint32_t request);
/* A whole control frame. */
bool raw_control(int fd, uint16_t type, uint32_t request, const void *body, size_t length);
/* The next frame of the type; others are skipped. The body's length, or -1 at the end. */
long raw_answer(int fd, uint16_t type, uint8_t body[CONTROL_BODY_MAX]);
/* Looks a name up; 0 or the refusal. */
int raw_lookup(int fd, const char *name, uint64_t *handle);
/* Answers the next look-up, whatever the name: host memory that may be read and written. */
void raw_found(int fd, uint64_t handle, uint64_t length);

#endif
