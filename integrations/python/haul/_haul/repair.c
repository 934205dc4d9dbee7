/* SPDX-License-Identifier: MIT
 * Cache: repair. */
#include <haul/cache.h>

#include "cache.h"

struct repair {
  struct job job;
  unsigned flags;
  haul_deadline until;
  struct haul_cache_repair result;
};

static int run_repair(struct job *job) {
  struct repair *repair = (struct repair *)job;
  return haul_cache_repair(job->handle, repair->flags, repair->until, NULL, NULL, &repair->result);
}

static PyObject *repair_object(const struct haul_cache_repair *result) {
  struct haul_error error = {.code = result->code, .call = "haul_cache_repair"};
  PyOS_snprintf(error.text, sizeof error.text, "%s", haul_error_text(result->code));
  PyOS_snprintf(error.hint, sizeof error.hint,
                "repair again, once the stores have room and respond");
  PyObject *failed = result->code ? error_object(&error) : Py_NewRef(Py_None);
  if (!failed)
    return NULL;
  return data_make(
      "Repair", Py_BuildValue("(KKKKKIN)", (unsigned long long)result->blocks,
                              (unsigned long long)result->copies, (unsigned long long)result->bytes,
                              (unsigned long long)result->missing,
                              (unsigned long long)result->changed, result->away, failed));
}

PyObject *cache_repair(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"dry_run", "timeout", NULL};
  PyObject *timeout = Py_None;
  int dry_run = 0;
  haul_deadline until;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$pO", names, &dry_run, &timeout) ||
      !deadline_from(timeout, ((struct object *)self)->node->timeout, &until))
    return NULL;
  struct repair *repair =
      job_new(sizeof *repair, (struct object *)self, "repair", run_repair, NULL);
  if (!repair)
    return NULL;
  repair->flags = dry_run ? HAUL_CACHE_DRY_RUN : 0;
  repair->until = until;
  repair->result = (struct haul_cache_repair)HAUL_CACHE_REPAIR_INIT;
  if (job_run(&repair->job) != 0)
    return NULL;
  PyObject *result = repair_object(&repair->result);
  job_free(&repair->job);
  return result;
}
