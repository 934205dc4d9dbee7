/* SPDX-License-Identifier: MIT
 * Shares a matrix with another process, which gets the ticket and the descriptor over a socketpair.
 * The importer reads the memory of the owner and writes its result there, without a copy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <haul/haul.h>

#define ROWS    256
#define COLUMNS 512

static void require(int holds, const char *what) {
  const struct haul_error *error = haul_error_last();
  if (holds)
    return;
  fprintf(stderr, "%s: %s %s (%s)\n", what, error->call, error->text, error->hint);
  exit(1);
}

/* Sends the ticket and its descriptor, or receives them when `descriptor` is -1. */
static int pass(int channel, struct haul_ticket *ticket, int descriptor) {
  char control[CMSG_SPACE(sizeof descriptor)] __attribute__((aligned(sizeof(size_t)))) = {0};
  struct iovec span = {ticket, sizeof *ticket};
  struct msghdr message = {
      .msg_iov = &span, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (descriptor < 0) {
    require(recvmsg(channel, &message, MSG_CMSG_CLOEXEC) == sizeof *ticket, "receive the ticket");
    require(message.msg_controllen == sizeof control, "receive its descriptor");
    memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    return descriptor;
  }
  *header = (struct cmsghdr){CMSG_LEN(sizeof descriptor), SOL_SOCKET, SCM_RIGHTS};
  memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  require(sendmsg(channel, &message, 0) == sizeof *ticket, "send the ticket");
  return close(descriptor);
}

static int importer(int owner) {
  haul_node *node;
  haul_region *region;
  struct haul_ticket ticket;
  struct haul_tensor layout;
  int descriptor = pass(owner, &ticket, -1);
  require(haul_node_open(NULL, &node) == 0, "importer");
  require(haul_region_import(node, &ticket, descriptor, &region) == 0, "importer");
  close(descriptor);
  require(haul_ticket_layout(&ticket, &layout) == 0, "importer");
  float *matrix = haul_region_address(region), sum = 0;
  for (int64_t row = 0; row < layout.shape[0]; row++)
    sum += matrix[row * layout.strides[0]];
  matrix[1] = sum;
  require(write(owner, "!", 1) == 1, "notify the owner");
  haul_region_release(region);
  haul_node_close(node);
  return 0;
}

int main(void) {
  int ends[2], descriptor, status;
  char byte;
  haul_node *node;
  haul_region *region;
  struct haul_ticket ticket;
  const struct haul_tensor layout = {.type = 2,
                                     .bits = 32,
                                     .lanes = 1,
                                     .dimensions = 2,
                                     .shape = {ROWS, COLUMNS},
                                     .strides = {COLUMNS, 1}};
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  if (fork() == 0) /* before a node is opened: a child cannot use it */
    return close(ends[0]) || importer(ends[1]);
  close(ends[1]);

  require(haul_node_open(NULL, &node) == 0, "owner");
  require(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, sizeof(float[ROWS][COLUMNS]),
                            0, &region) == 0,
          "owner");
  float *matrix = haul_region_address(region);
  for (int row = 0; row < ROWS; row++)
    matrix[row * COLUMNS] = (float)row;
  require(haul_region_export(region, HAUL_READ | HAUL_WRITE, &layout, &ticket, &descriptor) == 0,
          "owner");
  pass(ends[0], &ticket, descriptor);
  require(read(ends[0], &byte, 1) == 1, "wait for the importer");
  printf("the importer saw %d rows and wrote their sum: %.0f\n", ROWS, matrix[1]);
  require(matrix[1] == ROWS * (ROWS - 1) / 2.0f, "the sum is wrong");
  require(wait(&status) > 0 && status == 0, "the importer failed");
  haul_region_release(region);
  haul_node_close(node);
  return 0;
}
