/* SPDX-License-Identifier: MIT */
#ifndef HAUL_MEMORY_P2P_P2P_H
#define HAUL_MEMORY_P2P_P2P_H

extern const char *p2p_sys; /* "/sys"; another folder in tests, set before the first node opens */

#endif
