/* XLA, loaded once for all processes of a cluster on this host.
 *
 * To load it takes 0.2 to 0.3 s of a core, nine tenths of that to look up 264,000
 * symbols, and 28 MB that no other process shares. A supervisor does it once, and
 * its workers and compilers are forked from it: they have it at once, and share
 * its memory. Nothing of XLA has run by then but its static initialisers. */
#ifndef TOW_TOOL_PRELOAD_H_
#define TOW_TOOL_PRELOAD_H_

#include <stdbool.h>

/* From a slow disk it takes many seconds, of which nothing can be taken back. A
 * SIGTERM, SIGINT or SIGHUP that comes meanwhile, and that the caller blocks,
 * makes this process another one at once: `tow` with these words, which ends what
 * was begun.
 * False: it is not loaded, or it has made threads, which a forked process would
 * lack. Then every process loads its own, and says what is wrong, if something
 * is. */
bool tow_preload_xla(char *const *words_if_ended);

#endif /* TOW_TOOL_PRELOAD_H_ */
