/* SPDX-License-Identifier: MIT
 * How a node logs in at etcd, from a file of lines NAME = VALUE: `user` and `password`, and for
 * etcds:// the PEM files `authority`, `certificate` and `private_key`. */
#ifndef HAUL_DIRECTORY_LOGIN_H
#define HAUL_DIRECTORY_LOGIN_H

#include "directory/module.h"

#define LOGIN_WORD 256

struct login {
  char user[LOGIN_WORD], password[LOGIN_WORD]; /* "": nobody asks */
  char authority[LOGIN_WORD];                  /* "": those that the system knows */
  char certificate[LOGIN_WORD], private_key[LOGIN_WORD];
};

/* NULL says nothing. HAUL_EINVAL with the line. */
int login_parse(const struct directory_library *library, const char *text, struct login *login);
void login_forget(struct login *login);

#endif
