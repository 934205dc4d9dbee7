/* SPDX-License-Identifier: MIT
 * Reading files: the public calls, over a module that is loaded when needed. */
#include <string.h>

#include "core/error.h"
#include "core/library.h"
#include "file/module.h"
#include "memory/copy.h"
#include "node/node.h"

#define COPY_NS INT64_C(30000000000) /* a longer copy counts as a lost device */

static struct { const struct file_module *module; } table;

static const struct library_symbol symbols[] = {{"haul_file_module", 0}};

static struct library library = {
    .title = FILE_MODULE,
    .names = {FILE_MODULE},
    .module = sizeof(struct file_module),
    .since = "this haul",
    .packages = "libhaul0",
    LIBRARY_REQUIRED(symbols, table),
};

static int get_host(haul_region *like, size_t length, haul_region **region) {
  return heap_alloc(like->heap, (struct haul_place){HAUL_HOST, 0}, length, HAUL_REGION_PRIVATE,
                    region);
}

static int copy_host(haul_region *to, uint64_t at, haul_region *from, size_t length) {
  return copy_sync(heap_staging(to->heap), &to->memory, at, &from->memory, 0, length,
                   haul_deadline_in(COPY_NS));
}

static const struct file_library file_library = {
    sizeof file_library, error_set,           error_system, haul_region_place, haul_region_rights,
    haul_region_address, haul_region_release, get_host,     copy_host};

static const char mistake[] = "file, region or report is NULL";

HAUL_API int haul_file_open(int descriptor, haul_file **file) {
  int code = node_enter("haul_file_open", file, mistake);
  if (code)
    return code;
  return library_open(&library) ? table.module->open(&file_library, descriptor, file)
                                : HAUL_ENOTSUP;
}

/* Of a report that may be of an earlier or later version. */
static void clear(struct haul_file_report *report) {
  size_t whole = report->size < sizeof *report ? report->size : sizeof *report;
  if (whole > sizeof report->size)
    memset((char *)report + sizeof report->size, 0, whole - sizeof report->size);
}

HAUL_API int haul_file_read(haul_file *file, uint64_t offset, haul_region *to, uint64_t to_offset,
                            size_t length, unsigned flags, struct haul_file_report *report) {
  int code = node_enter("haul_file_read", file && to && report, mistake);
  if (code)
    return code;
  clear(report);
  code = region_check(to, to_offset, length);
  if (code)
    return code;
  if (!memory_alive(&to->memory))
    return error_code(HAUL_ESTALE, NULL);
  return table.module->read(file, offset, to, to_offset, length, flags, report);
}

HAUL_API void haul_file_close(haul_file *file) {
  if (file)
    table.module->close(file);
}
