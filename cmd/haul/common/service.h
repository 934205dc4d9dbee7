/* SPDX-License-Identifier: MIT
 *
 * What a service manager says to a daemon and hears from it: sd_listen_fds(3) and sd_notify(3), as
 * their pages describe the protocol.
 */
#ifndef HAUL_COMMAND_SERVICE_H
#define HAUL_COMMAND_SERVICE_H

/* How many listening sockets the process was started with; they are descriptors 3 and up. */
unsigned service_sockets(void);

/* "READY=1" and the like; nothing where no manager wants to know. */
void service_notify(const char *state);

#endif
