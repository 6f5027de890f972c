/* The bare minimum that the control plane is measured against: two processes,
 * one Unix stream socket, blocking read and write, no frames, no checks.
 *
 *     pingpong roundtrip COUNT    prints the median round trip of 8 bytes in us
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bare.h"

#define MESSAGE_SIZE 8
#define BATCH_SIZE   65536

static void read_exactly(int fd, char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t got = read(fd, bytes, count);
        if (got <= 0) die("read");
        bytes += got;
        count -= (size_t)got;
    }
}

static void write_exactly(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t put = write(fd, bytes, count);
        if (put <= 0) die("write");
        bytes += put;
        count -= (size_t)put;
    }
}

static void echo(int fd, long count)
{
    char message[MESSAGE_SIZE];
    for (long i = 0; i < count; i++) {
        read_exactly(fd, message, sizeof(message));
        write_exactly(fd, message, sizeof(message));
    }
}

static double roundtrip(int fd, long count)
{
    char message[MESSAGE_SIZE] = {0};
    double *samples = malloc((size_t)count * sizeof(*samples));
    if (samples == NULL) die("malloc");
    double before = now_s();
    for (long i = 0; i < count; i++) {
        write_exactly(fd, message, sizeof(message));
        read_exactly(fd, message, sizeof(message));
        double after = now_s();
        samples[i] = after - before;
        before = after;
    }
    double median = median_of(samples, (size_t)count) * 1e6;
    free(samples);
    return median;
}

int main(int argc, char **argv)
{
    long count = argc == 3 ? atol(argv[2]) : 0;
    if (count <= 0 || strcmp(argv[1], "roundtrip") != 0) {
        fprintf(stderr, "usage: pingpong roundtrip COUNT\n");
        return 2;
    }
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) die("socketpair");
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        echo(fds[1], count);
        return 0;
    }
    close(fds[1]);
    printf("%.6g\n", roundtrip(fds[0], count));
    return waitpid(child, NULL, 0) == child ? 0 : 1;
}
