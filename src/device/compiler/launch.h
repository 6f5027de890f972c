/* Children of a process that has their plugin loaded already: it forks them, and
 * they have it at once.
 *
 * Who wants a child (the compiler in a controller) sends, over a socket that it
 * shares with the launcher (`tow up`), the child's words, its descriptors, and one
 * end of a `leash`. On the leash the launcher says what became of it; a leash that
 * is let go of ends the child. The socket and the leash keep the bounds of
 * messages (SOCK_SEQPACKET). Any thread may ask. */
#ifndef TOW_DEVICE_COMPILER_LAUNCH_H_
#define TOW_DEVICE_COMPILER_LAUNCH_H_

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Words of one child, each with its end, in one message. */
#define TOW_LAUNCH_BYTES_MAX ((size_t)8 << 10)
#define TOW_LAUNCH_WORDS_MAX ((size_t)64)

/* -- Who asks --------------------------------------------------------------- */

/* `talk_fd` and `error_fd` are the child's, and lent. False: there is no such
 * launcher, or it has nothing loaded, or no room; start a program instead.
 * Otherwise the caller owns the leash and the descriptor of the process. */
bool tow_launch_ask(int launcher_fd, char *const words[], int talk_fd,
                    int error_fd, pid_t *out_pid, int *out_pid_fd,
                    int *out_leash_fd);
/* Ends the child, with all that it started, and lets go of the leash. Returns
 * how it ended, as waitpid says it. */
int tow_launch_end(int take_leash_fd);

/* -- Who launches ----------------------------------------------------------- */

typedef struct tow_launch {
    char bytes[TOW_LAUNCH_BYTES_MAX];
    char *words[TOW_LAUNCH_WORDS_MAX + 1]; /* NULL after the last */
    size_t word_count;
    int talk_fd, error_fd, leash_fd; /* owned */
} tow_launch_t;

typedef enum tow_launch_heard {
    TOW_LAUNCH_NONE,
    TOW_LAUNCH_ASKED,
    TOW_LAUNCH_OVER, /* nobody is at the other end any more */
} tow_launch_heard_t;

/* Does not wait. What makes no sense is dropped, and its leash with it. */
tow_launch_heard_t tow_launch_hear(int fd, tow_launch_t *out_launch);
/* The descriptors of one that was heard. */
void tow_launch_close(tow_launch_t *launch);
/* The child is there. */
void tow_launch_tell_started(int leash_fd, pid_t pid, int pid_fd);
/* It was not started; or it has ended. */
void tow_launch_tell_refused(int leash_fd);
void tow_launch_tell_ended(int leash_fd, int wait_status);

#endif /* TOW_DEVICE_COMPILER_LAUNCH_H_ */
