/* SPDX-License-Identifier: MIT
 * Signals to this process, and the protocol of its service manager: sd_listen_fds(3) and
 * sd_notify(3).
 *
 * Waits are cut into slices of INTERRUPT_SLICE_NS, as another thread may receive the signal. */
#ifndef HAUL_COMMAND_PROCESS_H
#define HAUL_COMMAND_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

#define INTERRUPT_SLICE_NS 100000000

/* From this call on SIGINT and SIGTERM set a flag; a second signal ends the process. */
void interrupt_catch(void);
bool interrupted(void);
void interrupt_raise(int number); /* sets the flag for this signal; async-signal-safe */

/* Ends the process by the signal that set the flag, if one did: a shell that sees an exit status
 * instead goes on with its loop. */
void interrupt_end(void);

/* Blocks SIGINT, SIGTERM and, unless it is ignored (nohup), SIGHUP in this thread and those it
 * starts, and ignores SIGPIPE. Returns a signalfd; -1 after an error, which has been
 * printed. */
int signals_open(void);

/* Reads the signalfd: "SIGTERM from process 7 (bash), user 0". Returns an exit status: a failure of
 * the descriptor is one. */
int signals_describe(int signals, char *text, size_t size);

/* From this call on other signals that end the process by default print a line with the command's
 * name first. */
void signals_explain_fatal(const char *command);

/* The number of listening sockets passed by the manager; they are descriptors 3 and up. */
unsigned service_sockets(void);

/* Sends "READY=1" or another state to the manager, if there is one. */
void service_notify(const char *state);

#endif
