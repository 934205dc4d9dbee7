/* SPDX-License-Identifier: MIT
 * A peer by hand: it sends and receives the protocol's bytes over plain sockets, so that it can
 * violate every rule. All calls block; each fails the test after 20 s instead of hanging. */
#ifndef HAUL_TESTS_RAW_H
#define HAUL_TESTS_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/control.h"
#include "node/handshake.h"
#include "node/node.h"

/* The highest version of the protocol that this peer says it supports. */
extern uint16_t raw_highest;

/* A connection, before any bytes. */
int raw_connect(const char *address);
/* A listening socket for a node to connect to. */
int raw_listen(const char *address);
int raw_accept(int listener);
/* Closes the channels that a node with a NIC connects, until a frame arrives on `control`. */
void raw_refuse_nic(int listener, int control);
/* Receives the hello of an accepted connection. False when the connection ended. */
bool raw_hello_of(int fd, struct hello *hello);
/* Also sends the welcome, as from this host or another one. */
bool raw_welcome(int fd, bool same_host, struct hello *hello);
/* False when the other side ended the connection. */
bool raw_send(int fd, const void *bytes, size_t length);
bool raw_receive(int fd, void *bytes, size_t length);
/* Discards what still comes; true when the other side ended the connection within the time. */
bool raw_ended(int fd, int64_t within_ns);

struct hello raw_hello(enum role role);
/* Sends the hello and reads the welcome; false when the connection ended instead. */
bool raw_greet(int fd, const struct hello *hello, struct welcome *welcome);
/* A control channel after its handshake and READY. */
int raw_peer(const char *address, struct welcome *welcome);
/* A channel of that peer; -1 when it was rejected. */
int raw_channel(const char *address, const struct welcome *welcome, const char *transport,
                uint16_t index);

void raw_control_head(uint8_t *head, uint16_t type, uint32_t length, uint32_t request);
/* A whole control frame. */
bool raw_control(int fd, uint16_t type, uint32_t request, const void *body, size_t length);
/* Receives the next frame of the type, and skips others. The body's length, or -1 at the end of the
 * connection. */
long raw_answer(int fd, uint16_t type, uint8_t body[CONTROL_BODY_MAX]);
/* Looks a name up: 0 or the code of the rejection. */
int raw_lookup(int fd, const char *name, uint64_t *handle);
/* Answers the next lookup, of any name: host memory with both rights. */
void raw_found(int fd, uint64_t handle, uint64_t length);

#endif
