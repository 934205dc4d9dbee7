/* SPDX-License-Identifier: MIT
 * The command line: finds the subcommand and runs it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <haul/haul.h>

#include "command.h"
#include "common/fail.h"
#include "common/options.h"
#include "common/process.h"
#include "common/text.h"

static const struct command *const commands[] = {
    &info_command,     &doctor_command, &serve_command,   &ls_command,
    &put_command,      &get_command,    &explain_command, &bench_command,
    &pingpong_command, &mount_command,  &key_command,     &top_command,
    &trace_command,    &cache_command,  &push_command,    &pull_command,
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static void print_overview(FILE *out) {
  fputs("usage: haul COMMAND [OPTIONS] [OPERANDS]\n"
        "\n"
        "Moves bytes between memories and reports the path.\n"
        "\n"
        "commands:\n",
        out);
  for (size_t i = 0; i < COMMAND_COUNT; i++)
    fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
  fputs("  help       Show the help of a command\n"
        "  version    Show the versions of the command and of the library\n"
        "\n"
        "`haul help COMMAND` or `haul COMMAND --help` shows options and examples.\n"
        "exit status: 0 done, 1 failed, 2 wrong usage\n",
        out);
}

static const struct command *find_command(const char *name) {
  for (size_t i = 0; i < COMMAND_COUNT; i++)
    if (strcmp(commands[i]->name, name) == 0)
      return commands[i];
  return NULL;
}

static int unknown_command(const char *name) {
  size_t i = 0;
  while (i < COMMAND_COUNT && !text_resembles(name, commands[i]->name))
    i++;
  if (i < COMMAND_COUNT)
    fail_because("list the commands: haul help", "unknown command '%s': did you mean '%s'?", name,
                 commands[i]->name);
  else
    fail_because("list the commands: haul help", "unknown command '%s'", name);
  return EXIT_USAGE;
}

static int too_many(const char *word) {
  fail_because("show the use: haul help", "too many operands: '%s'", word);
  return EXIT_USAGE;
}

static int help(int argc, char **argv) {
  if (argc > 2)
    return too_many(argv[2]);
  if (argc < 2) {
    print_overview(stdout);
    return EXIT_DONE;
  }
  const struct command *command = find_command(argv[1]);
  if (!command)
    return unknown_command(argv[1]);
  options_print_help(command, stdout);
  return EXIT_DONE;
}

static bool is_either(const char *text, const char *one, const char *other) {
  return strcmp(text, one) == 0 || strcmp(text, other) == 0;
}

static int version(int argc, char **argv) {
  if (argc > 1)
    return too_many(argv[1]);
  printf("haul %d.%d.%d (libhaul %s)\n", HAUL_VERSION_MAJOR, HAUL_VERSION_MINOR, HAUL_VERSION_PATCH,
         haul_version());
  return EXIT_DONE;
}

static int dispatch(int argc, char **argv) {
  if (argc < 2) {
    print_overview(stderr);
    return EXIT_USAGE;
  }
  if (is_either(argv[1], "--version", "-V") || strcmp(argv[1], "version") == 0)
    return version(argc - 1, argv + 1);
  if (is_either(argv[1], "--help", "-h") || strcmp(argv[1], "help") == 0)
    return help(argc - 1, argv + 1);
  const struct command *command = find_command(argv[1]);
  if (!command)
    return unknown_command(argv[1]);
  fail_set_command(command->name);
  char **operands;
  int status;
  return options_parse(command, argc - 1, argv + 1, &operands, &status)
             ? command->run(command, operands)
             : status;
}

/* Opens closed standard descriptors: otherwise a later file or socket would get the number and the
 * output. The mode makes reading, or printing, fail as before. */
static void reserve_standard_descriptors(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv) {
  reserve_standard_descriptors();
  signal(SIGXFSZ, SIG_IGN); /* writes and shared memory beyond `ulimit -f` fail with EFBIG */
  int status = dispatch(argc, argv);

  /* Lost output is a failure. */
  if ((fflush(stdout) || ferror(stdout)) && status == EXIT_DONE)
    status = fail_system(errno, "cannot write to standard output");
  if (status != EXIT_DONE)
    interrupt_end();
  return status;
}
