/* Listening where it is possible, and an error with the reason where it is
 * not. */
#include "base/testing.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env/net/socket.h"

static char folder[64];
static tow_address_t address;

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/tow-socket-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    address = (tow_address_t){.kind = TOW_ADDRESS_UNIX};
    snprintf(address.host, sizeof(address.host), "%s/socket", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(address.host);
    return rmdir(folder);
}

static int listen_well(tow_address_t *at, tow_net_socket_file_t *out_file)
{
    int fd;
    tow_status_t status = tow_net_socket_listen(at, &fd, out_file);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    return fd;
}

static void check_listen_fails(tow_address_t *at, tow_code_t code,
                               const char *words)
{
    int fd;
    tow_net_socket_file_t file;
    tow_status_t status = tow_net_socket_listen(at, &fd, &file);
    assert_int_equal(tow_status_code(status), code);
    if (strstr(tow_status_message(status), words) == NULL)
        fail_msg("\"%s\" is not in: %s", words, tow_status_message(status));
    assert_int_equal(fd, -1);
    tow_status_release(status);
}

static void a_unix_socket_is_private_and_is_removed(void **state)
{
    (void)state;
    mode_t before = umask(0);
    tow_net_socket_file_t file;
    int fd = listen_well(&address, &file);
    umask(before);
    struct stat facts;
    assert_int_equal(stat(address.host, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
    close(fd);
    tow_net_socket_file_remove(address.host, &file);
    assert_int_not_equal(access(address.host, F_OK), 0);
}

static void a_dead_socket_file_is_replaced(void **state)
{
    (void)state;
    tow_net_socket_file_t first, second;
    close(listen_well(&address, &first));
    assert_int_equal(access(address.host, F_OK), 0);
    int fd = listen_well(&address, &second);
    /* A file that replaced ours must not be removed. */
    if (first.inode != second.inode) {
        tow_net_socket_file_remove(address.host, &first);
        assert_int_equal(access(address.host, F_OK), 0);
    }
    tow_net_socket_file_remove(address.host, &second);
    close(fd);
}

static void a_live_socket_is_left_alone(void **state)
{
    (void)state;
    tow_net_socket_file_t file;
    int fd = listen_well(&address, &file);
    check_listen_fails(&address, TOW_ALREADY_EXISTS, address.host);
    check_listen_fails(&address, TOW_ALREADY_EXISTS, "another process");
    assert_int_equal(access(address.host, F_OK), 0);
    close(fd);
}

static void a_file_that_is_no_socket_is_left_alone(void **state)
{
    (void)state;
    close(open(address.host, O_CREAT | O_WRONLY, 0600));
    check_listen_fails(&address, TOW_ALREADY_EXISTS, "not a socket");
    assert_int_equal(access(address.host, F_OK), 0);
}

static void a_folder_that_is_not_there_is_named(void **state)
{
    (void)state;
    tow_address_t nowhere = {.kind = TOW_ADDRESS_UNIX};
    snprintf(nowhere.host, sizeof(nowhere.host), "%s/none/socket", folder);
    check_listen_fails(&nowhere, TOW_NOT_FOUND, nowhere.host);
}

static void a_port_in_use_is_named(void **state)
{
    (void)state;
    tow_address_t first = {.kind = TOW_ADDRESS_TCP, .host = "127.0.0.1"};
    tow_net_socket_file_t file;
    int fd = listen_well(&first, &file);
    assert_int_not_equal(first.port, 0);
    char text[64];
    snprintf(text, sizeof(text), "tcp:127.0.0.1:%u: the port is in use",
             first.port);
    check_listen_fails(&first, TOW_ALREADY_EXISTS, text);
    close(fd);
}

/* Many processes find the same stale file at once: exactly one may take it. */
#define RIVAL_COUNT 8

static void *compete(void *argument)
{
    tow_address_t own = address;
    tow_net_socket_file_t file;
    tow_status_t status = tow_net_socket_listen(&own, argument, &file);
    tow_status_release(status);
    return NULL;
}

static void of_rivals_for_a_stale_socket_file_one_wins(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        pthread_t threads[RIVAL_COUNT];
        int fds[RIVAL_COUNT];
        for (int i = 0; i < RIVAL_COUNT; i++)
            pthread_create(&threads[i], NULL, compete, &fds[i]);
        int winner_count = 0;
        for (int i = 0; i < RIVAL_COUNT; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < RIVAL_COUNT; i++) {
            winner_count += fds[i] >= 0;
            if (fds[i] >= 0) close(fds[i]);
        }
        assert_int_equal(winner_count, 1);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(TEST(a_unix_socket_is_private_and_is_removed),
              TEST(a_dead_socket_file_is_replaced),
              TEST(a_live_socket_is_left_alone),
              TEST(a_file_that_is_no_socket_is_left_alone),
              TEST(a_folder_that_is_not_there_is_named),
              TEST(a_port_in_use_is_named),
              TEST(of_rivals_for_a_stale_socket_file_one_wins))
