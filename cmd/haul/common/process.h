/* SPDX-License-Identifier: MIT
 *
 * Signals to this process, and the protocol of its service manager.
 */
#ifndef HAUL_COMMAND_PROCESS_H
#define HAUL_COMMAND_PROCESS_H

#include <stdbool.h>

#define INTERRUPT_SLICE_NS 100000000

/* From now on the two signals set the flag, and a second one ends the process as usual. */
void interrupt_catch(void);
bool interrupted(void);

/* How many listening sockets the process was started with; they are descriptors 3 and up. */
unsigned service_sockets(void);

/* "READY=1" and the like; nothing where no manager wants to know. */
void service_notify(const char *state);

#endif
