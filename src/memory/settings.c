/* SPDX-License-Identifier: MIT */
#include "memory/settings.h"

#include <pthread.h>
#include <string.h>

const struct memory_settings memory_defaults = {
    .dpdk_pool = {4096, 1024, 256, 64},
    .dpdk_wait_ns = 100000000,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two below */
static struct memory_settings current;
static bool set;

void memory_settings_set(const struct memory_settings *settings) {
  pthread_mutex_lock(&lock);
  current = *settings;
  set = true;
  pthread_mutex_unlock(&lock);
}

void memory_settings_get(struct memory_settings *settings) {
  pthread_mutex_lock(&lock);
  *settings = set ? current : memory_defaults;
  pthread_mutex_unlock(&lock);
}

/* rte_eal_init calls exit() for these (DPDK Linux guide, "EAL parameters"). */
static bool ends_the_program(const char *word, size_t length) {
  static const char *const words[] = {"-h", "--help", "-v", "--version", "--log-level=help"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (strlen(words[i]) == length && memcmp(words[i], word, length) == 0)
      return true;
  return false;
}

bool memory_eal_is_valid(const char *arguments) {
  if (strlen(arguments) >= sizeof memory_defaults.dpdk_eal)
    return false;
  for (const char *at = arguments; *at; at++)
    if (*at < ' ' || *at > '~')
      return false;
  const char *word = arguments + strspn(arguments, " ");
  if (*word != '-')
    return false;
  for (size_t length; (length = strcspn(word, " ")) > 0; word += length, word += strspn(word, " "))
    if (ends_the_program(word, length))
      return false;
  return true;
}
