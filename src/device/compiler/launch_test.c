#include "base/testing.h"

#include <signal.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/compiler/launch.h"

static char *words[] = {"tow_compile_child", "1", "0", "plugin", NULL};

typedef struct stage {
    int asker, launcher; /* the ends of the shared socket */
    int talk[2];         /* what the child is to have */
} stage_t;

static int set_up(void **state)
{
    static stage_t stage;
    int ends[2];
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    stage.asker = ends[0];
    stage.launcher = ends[1];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, stage.talk), 0);
    *state = &stage;
    return 0;
}

static int tear_down(void **state)
{
    stage_t *stage = *state;
    if (stage->asker >= 0) close(stage->asker);
    close(stage->launcher);
    close(stage->talk[0]);
    close(stage->talk[1]);
    return 0;
}

/* Asks, in a process of its own, since that waits; exits with what it got. */
static pid_t ask_elsewhere(const stage_t *stage, char **asked, bool ends_it)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    close(stage->launcher);
    pid_t child = 0;
    int pid_fd = -1, leash_fd = -1;
    if (!tow_launch_ask(stage->asker, asked, stage->talk[1], stage->talk[1],
                        &child, &pid_fd, &leash_fd))
        _exit(1);
    if (child != 77 || pid_fd < 0) _exit(2);
    if (!ends_it) _exit(0);
    _exit(tow_launch_end(leash_fd) == SIGKILL ? 0 : 3);
}

static int exit_of(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* In place: the words point into it. */
static void hear_one(const stage_t *stage, tow_launch_t *out_launch)
{
    struct timeval patience = {.tv_sec = 60};
    char byte;
    setsockopt(stage->launcher, SOL_SOCKET, SO_RCVTIMEO, &patience,
               sizeof(patience));
    assert_true(recv(stage->launcher, &byte, 1, MSG_PEEK) >= 0); /* Waits. */
    assert_int_equal(tow_launch_hear(stage->launcher, out_launch),
                     TOW_LAUNCH_ASKED);
}

static void words_and_descriptors_arrive_and_the_end_is_told(void **state)
{
    const stage_t *stage = *state;
    const pid_t asker = ask_elsewhere(stage, words, true);
    tow_launch_t launch;
    hear_one(stage, &launch);
    assert_int_equal(launch.word_count, 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(launch.words[i], words[i]);
    assert_null(launch.words[4]);
    assert_int_equal(write(launch.talk_fd, "x", 1), 1);
    char byte = 0;
    assert_int_equal(read(stage->talk[0], &byte, 1), 1);
    assert_int_equal(byte, 'x');

    const int pid_fd = pidfd_open(getpid(), 0);
    tow_launch_tell_started(launch.leash_fd, 77, pid_fd);
    close(pid_fd);
    /* The leash is let go of: nothing else is ever said on it. */
    assert_int_equal(read(launch.leash_fd, &byte, 1), 0);
    tow_launch_tell_ended(launch.leash_fd, SIGKILL);
    tow_launch_close(&launch);
    assert_int_equal(exit_of(asker), 0);
}

static void an_asker_that_is_gone_lets_go_of_the_leash(void **state)
{
    const stage_t *stage = *state;
    const pid_t asker = ask_elsewhere(stage, words, false);
    tow_launch_t launch;
    hear_one(stage, &launch);
    const int pid_fd = pidfd_open(getpid(), 0);
    tow_launch_tell_started(launch.leash_fd, 77, pid_fd);
    close(pid_fd);
    assert_int_equal(exit_of(asker), 0);
    char byte;
    assert_int_equal(read(launch.leash_fd, &byte, 1), 0);
    tow_launch_tell_ended(launch.leash_fd, 0); /* To nobody; no signal. */
    tow_launch_close(&launch);
}

static void a_launcher_may_refuse_or_go(void **state)
{
    const stage_t *stage = *state;
    pid_t asker = ask_elsewhere(stage, words, false);
    tow_launch_t launch;
    hear_one(stage, &launch);
    tow_launch_tell_refused(launch.leash_fd);
    tow_launch_close(&launch);
    assert_int_equal(exit_of(asker), 1);

    asker = ask_elsewhere(stage, words, false);
    hear_one(stage, &launch);
    tow_launch_close(&launch); /* Without a word. */
    assert_int_equal(exit_of(asker), 1);
}

static void words_that_do_not_fit_are_not_sent(void **state)
{
    const stage_t *stage = *state;
    static char large[TOW_LAUNCH_BYTES_MAX + 1];
    char *asked[] = {"tow_compile_child", large, NULL};
    tow_launch_t launch;
    memset(large, 'a', sizeof(large) - 1);
    assert_int_equal(exit_of(ask_elsewhere(stage, asked, false)), 1);
    assert_int_equal(tow_launch_hear(stage->launcher, &launch),
                     TOW_LAUNCH_NONE);
}

static void nonsense_is_dropped(void **state)
{
    stage_t *stage = *state;
    tow_launch_t launch;
    static char large[2 * TOW_LAUNCH_BYTES_MAX];
    assert_int_equal(send(stage->asker, "words", 5, 0), 5); /* no descriptors */
    assert_int_equal(tow_launch_hear(stage->launcher, &launch),
                     TOW_LAUNCH_NONE);
    assert_true(send(stage->asker, large, sizeof(large), 0) > 0);
    assert_int_equal(tow_launch_hear(stage->launcher, &launch),
                     TOW_LAUNCH_NONE);
    assert_int_equal(tow_launch_hear(stage->launcher, &launch),
                     TOW_LAUNCH_NONE);
    close(stage->asker);
    stage->asker = -1;
    assert_int_equal(tow_launch_hear(stage->launcher, &launch),
                     TOW_LAUNCH_OVER);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(CASE(words_and_descriptors_arrive_and_the_end_is_told),
              CASE(an_asker_that_is_gone_lets_go_of_the_leash),
              CASE(a_launcher_may_refuse_or_go),
              CASE(words_that_do_not_fit_are_not_sent),
              CASE(nonsense_is_dropped))
