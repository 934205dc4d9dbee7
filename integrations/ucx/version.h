/* SPDX-License-Identifier: MIT
 * UCX's headers of the tree in UCX_SOURCE_DIR, and differences between the supported
 * versions: 1.13, which Debian 12 has, without a memory type for Gaudi; 1.22; and 1.23, UCX's
 * master of August 2026. */
#ifndef HAUL_UCX_VERSION_H
#define HAUL_UCX_VERSION_H

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include "config.h"

#include <ucm/api/ucm.h>
#include <ucs/datastruct/queue.h>
#include <ucs/debug/log.h>
#include <ucs/memory/memory_type.h>
#include <ucs/memory/memtype_cache.h>
#include <ucs/sys/string.h>
#include <ucs/sys/topo/base/topo.h>
#include <ucs/type/class.h>
#include <uct/api/uct.h>
#include <uct/api/v2/uct_v2.h>
#include <uct/base/uct_iface.h>
#include <uct/base/uct_iov.inl>
#include <uct/base/uct_md.h>
#pragma GCC diagnostic pop

/* CMake reads UCX_MAJOR and UCX_MINOR from the tree. */
#if UCX_MAJOR != 1 || (UCX_MINOR != 13 && UCX_MINOR != 22 && UCX_MINOR != 23)
#error "unsupported UCX version: CMake should have rejected this tree"
#endif

#define UCX_HAS_GAUDI (UCX_MINOR >= 22)

/* Symbols that 1.13 lacks. They are weak so that a module preloaded into 1.13 can report the
 * version mismatch. */
#if UCX_HAS_GAUDI
#pragma weak ucs_config_doc_nop
#pragma weak uct_base_ep_is_connected
#pragma weak uct_base_iface_is_reachable
#pragma weak uct_base_rkey_compare
#pragma weak uct_iface_base_query_v2
#endif

#if UCX_HAS_GAUDI
#define GAUDI_MEMORY_TYPE  UCS_MEMORY_TYPE_GAUDI
#define GAUDI_MEMORY_TYPES UCS_BIT(UCS_MEMORY_TYPE_GAUDI)
#else
#define GAUDI_MEMORY_TYPE  UCS_MEMORY_TYPE_UNKNOWN
#define GAUDI_MEMORY_TYPES UINT64_C(0)
#endif

#endif
