/* The first and only process of the machine that bochs.sh boots: runs a program, says how it ended,
 * and stops the machine. */
#include <stdio.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        execl("/program", "program", "avx512", (char *)NULL);
        _exit(127);
    }
    waitpid(child, &status, 0);
    printf("program ended with status %d\n", status);
    fflush(stdout);
    sync();
    reboot(RB_POWER_OFF);
    return 1;
}
