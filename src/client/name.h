/* The name of a client: user@host:pid:script. */
#ifndef TOW_CLIENT_NAME_H_
#define TOW_CLIENT_NAME_H_

#include "env/env.h"

#define TOW_CLIENT_NAME_SIZE (TOW_PEER_NAME_MAX + 1)

/* `given` is what runs, such as the name of a program; NULL: the script of a
 * Python process, else the program. Long parts are cut. */
void tow_client_name(const char *given, char name[TOW_CLIENT_NAME_SIZE]);
/* What runs, of a command line as /proc/PID/cmdline has it: the script or
 * module of a Python process, else the program, without its folder. */
void tow_client_name_script(const char *command_line, size_t size, char *script,
                            size_t capacity);

#endif /* TOW_CLIENT_NAME_H_ */
