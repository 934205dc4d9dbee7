/* SPDX-License-Identifier: MIT
 * Gaudi memory for UCX's own tests. They allocate the memory of other vendors by the vendor's
 * library; this is allocated by the module's memory domain and copied by gaudi_cpy. */
#ifndef HAUL_TESTS_UCX_GAUDI_MEMORY_H
#define HAUL_TESTS_UCX_GAUDI_MEMORY_H

#include <stddef.h>
#include <ucs/memory/memory_type.h>

/* Whether the module is loaded and has a device. */
bool gaudi_memory_is_there();

void *gaudi_memory_alloc(size_t length);
void gaudi_memory_free(void *address);
void gaudi_memory_set(void *address, size_t length, int value);
/* False if it copies nothing, as neither memory is Gaudi's. */
bool gaudi_memory_copy(void *to, const void *from, size_t length, ucs_memory_type_t to_type,
                       ucs_memory_type_t from_type);

#endif
