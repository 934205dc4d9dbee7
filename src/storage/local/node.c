/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <unistd.h>

#include "storage/local/local.h"

/* An inode number that users see is the host's own in its lower bits, with the index of the device
 * above: the same in every process that serves the folder if devices come in the same order, and
 * always the host's on the root's device. Numbers that do not fit are made up. The upper four bits
 * are 0: hf3fs_utils takes others for folders of 3fs-virt. */
#define NUMBER_BITS    48
#define NUMBER_DEVICES ((size_t)1 << 11)
#define NUMBER_MADE_UP (UINT64_C(1) << 59)

#define FIRST_BUCKETS 64

static size_t bucket_of(const struct nodes *nodes, uint64_t key) {
  return (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (nodes->buckets - 1);
}

static struct node **handle_bucket(const struct nodes *nodes, uint64_t handle) {
  return &nodes->by_handle[bucket_of(nodes, handle)];
}

static struct node **file_bucket(const struct nodes *nodes, dev_t device, ino_t number) {
  return &nodes->by_file[bucket_of(nodes, number ^ device << 40)];
}

int nodes_open(struct nodes *nodes) {
  *nodes = (struct nodes){.buckets = FIRST_BUCKETS};
  nodes->by_handle = calloc(FIRST_BUCKETS, sizeof *nodes->by_handle);
  nodes->by_file = calloc(FIRST_BUCKETS, sizeof *nodes->by_file);
  if (!nodes->by_handle || !nodes->by_file) {
    free(nodes->by_handle);
    free(nodes->by_file);
    return -ENOMEM;
  }
  pthread_mutex_init(&nodes->lock, NULL);
  return 0;
}

static void destroy_node(struct node *node) {
  close(node->fd);
  free(node);
}

void nodes_close(struct nodes *nodes) {
  for (size_t i = 0; i < nodes->buckets; i++)
    for (struct node *node = nodes->by_handle[i], *next; node; node = next) {
      next = node->next_by_handle;
      destroy_node(node);
    }
  free(nodes->by_handle);
  free(nodes->by_file);
  free(nodes->devices);
  pthread_mutex_destroy(&nodes->lock);
}

/* Tables; all with the lock */

static void insert_node(struct nodes *nodes, struct node *node) {
  struct node **head = handle_bucket(nodes, node->handle);
  node->next_by_handle = *head;
  *head = node;
  head = file_bucket(nodes, node->device, node->number);
  node->next_by_file = *head;
  *head = node;
}

static void remove_node(struct nodes *nodes, struct node *node) {
  struct node **at = handle_bucket(nodes, node->handle);
  while (*at != node)
    at = &(*at)->next_by_handle;
  *at = node->next_by_handle;
  at = file_bucket(nodes, node->device, node->number);
  while (*at != node)
    at = &(*at)->next_by_file;
  *at = node->next_by_file;
  nodes->count--;
}

/* Without memory the chains become longer, and nothing else happens. */
static void grow_tables(struct nodes *nodes) {
  size_t before = nodes->buckets;
  struct node **old = nodes->by_handle;
  struct node **by_handle = calloc(before * 2, sizeof(struct node *));
  struct node **by_file = calloc(before * 2, sizeof(struct node *));
  if (!by_handle || !by_file) {
    free(by_handle);
    free(by_file);
    return;
  }
  free(nodes->by_file);
  nodes->by_handle = by_handle;
  nodes->by_file = by_file;
  nodes->buckets = before * 2;
  for (size_t i = 0; i < before; i++)
    for (struct node *node = old[i], *next; node; node = next) {
      next = node->next_by_handle;
      insert_node(nodes, node);
    }
  free(old);
}

static struct node *find_handle(const struct nodes *nodes, uint64_t handle) {
  struct node *node = *handle_bucket(nodes, handle);
  while (node && node->handle != handle)
    node = node->next_by_handle;
  return node;
}

static struct node *find_file(const struct nodes *nodes, dev_t device, ino_t number) {
  struct node *node = *file_bucket(nodes, device, number);
  while (node && (node->device != device || node->number != number))
    node = node->next_by_file;
  return node;
}

/* Inode numbers; all with the lock */

/* NUMBER_DEVICES: the device is unknown. */
static size_t device_index(const struct nodes *nodes, dev_t device) {
  size_t i = 0;
  while (i < nodes->device_count && nodes->devices[i] != device)
    i++;
  return i < nodes->device_count ? i : NUMBER_DEVICES;
}

/* 0: it has to be made up. */
static uint64_t number_of(const struct nodes *nodes, dev_t device, ino_t number) {
  size_t index = device_index(nodes, device);
  if (index == NUMBER_DEVICES || number >> NUMBER_BITS)
    return 0;
  return (uint64_t)index << NUMBER_BITS | number;
}

static int add_device(struct nodes *nodes, dev_t device) {
  if (device_index(nodes, device) < NUMBER_DEVICES || nodes->device_count == NUMBER_DEVICES)
    return 0;
  dev_t *more = realloc(nodes->devices, (nodes->device_count + 1) * sizeof *more);
  if (!more)
    return -ENOMEM;
  more[nodes->device_count++] = device;
  nodes->devices = more;
  return 0;
}

static struct node *find_made_up(const struct nodes *nodes, uint64_t inode) {
  for (size_t i = 0; i < nodes->buckets; i++)
    for (struct node *node = nodes->by_handle[i]; node; node = node->next_by_handle)
      if (node->inode == inode)
        return node;
  return NULL;
}

uint64_t nodes_number(struct nodes *nodes, dev_t device, ino_t number) {
  pthread_mutex_lock(&nodes->lock);
  uint64_t inode = number_of(nodes, device, number);
  pthread_mutex_unlock(&nodes->lock);
  return inode;
}

/* With the lock. On success takes the descriptor. */
static struct node *new_node(struct nodes *nodes, int fd, const struct stat *stat) {
  struct node *node = calloc(1, sizeof *node);
  if (!node || add_device(nodes, stat->st_dev)) {
    free(node);
    return NULL;
  }
  node->handle = ++nodes->last_handle;
  node->device = stat->st_dev;
  node->number = stat->st_ino;
  node->inode = number_of(nodes, stat->st_dev, stat->st_ino);
  if (!node->inode)
    node->inode = NUMBER_MADE_UP | ++nodes->last_number;
  node->fd = fd;
  node->type = stat->st_mode & S_IFMT;
  if (++nodes->count > nodes->buckets)
    grow_tables(nodes);
  insert_node(nodes, node);
  return node;
}

int nodes_add(struct nodes *nodes, int fd, struct stat *stat, uint64_t *handle) {
  pthread_mutex_lock(&nodes->lock);
  struct node *node = find_file(nodes, stat->st_dev, stat->st_ino);
  bool known = node != NULL;
  bool full = !known && nodes->most && nodes->count >= nodes->most;
  if (!known && !full)
    node = new_node(nodes, fd, stat);
  if (node) {
    node->lookups++;
    stat->st_ino = node->inode;
    *handle = node->handle;
  }
  pthread_mutex_unlock(&nodes->lock);
  if (known || !node)
    close(fd);
  return node ? 0 : full ? -ENFILE : -ENOMEM;
}

struct node *nodes_get(struct nodes *nodes, uint64_t handle) {
  pthread_mutex_lock(&nodes->lock);
  struct node *node = find_handle(nodes, handle);
  if (node)
    node->references++;
  pthread_mutex_unlock(&nodes->lock);
  return node;
}

struct node *nodes_find(struct nodes *nodes, uint64_t inode) {
  size_t index = (size_t)(inode >> NUMBER_BITS);
  ino_t number = inode & ((UINT64_C(1) << NUMBER_BITS) - 1);
  struct node *node = NULL;
  pthread_mutex_lock(&nodes->lock);
  if (inode & NUMBER_MADE_UP)
    node = find_made_up(nodes, inode);
  else if (index < nodes->device_count)
    node = find_file(nodes, nodes->devices[index], number);
  if (node) {
    node->references++;
    node->lookups++;
  }
  pthread_mutex_unlock(&nodes->lock);
  return node;
}

/* Releases the lock before the node is destroyed, as close(2) may block. Safe on NULL. */
static void unlock_and_drop(struct nodes *nodes, struct node *node) {
  bool last = node && node->lookups == 0 && node->references == 0;
  if (last)
    remove_node(nodes, node);
  pthread_mutex_unlock(&nodes->lock);
  if (last)
    destroy_node(node);
}

void nodes_put(struct nodes *nodes, struct node *node) {
  pthread_mutex_lock(&nodes->lock);
  node->references--;
  unlock_and_drop(nodes, node);
}

void nodes_forget(struct nodes *nodes, uint64_t handle, uint64_t count) {
  pthread_mutex_lock(&nodes->lock);
  struct node *node = handle == SOURCE_ROOT ? NULL : find_handle(nodes, handle);
  if (node)
    node->lookups -= count < node->lookups ? count : node->lookups;
  unlock_and_drop(nodes, node);
}
