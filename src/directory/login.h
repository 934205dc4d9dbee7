/* SPDX-License-Identifier: MIT
 * The login of a node at etcd, from a file of lines NAME = VALUE: `user` and `password`, and for
 * etcds:// the PEM files `authority`, `certificate` and `private_key`. */
#ifndef HAUL_DIRECTORY_LOGIN_H
#define HAUL_DIRECTORY_LOGIN_H

#include "directory/module.h"

#define LOGIN_WORD 256

struct login {
  char user[LOGIN_WORD], password[LOGIN_WORD]; /* "": no authentication */
  char authority[LOGIN_WORD];                  /* "": the system's authorities */
  char certificate[LOGIN_WORD], private_key[LOGIN_WORD];
};

/* `text` NULL: an empty login. HAUL_EINVAL names the line. */
int login_parse(const struct directory_library *library, const char *text, struct login *login);
void login_forget(struct login *login);

#endif
