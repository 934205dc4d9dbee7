/* SPDX-License-Identifier: MIT
 *
 * SIGINT and SIGTERM as a flag, for work that has something to tidy up before it ends. Waits are
 * cut into slices of INTERRUPT_SLICE_NS, because the signal may be delivered to another thread.
 */
#ifndef HAUL_COMMAND_INTERRUPT_H
#define HAUL_COMMAND_INTERRUPT_H

#include <stdbool.h>

#define INTERRUPT_SLICE_NS 100000000

/* From now on the two signals set the flag, and a second one ends the process as usual. */
void interrupt_catch(void);
bool interrupted(void);

#endif
