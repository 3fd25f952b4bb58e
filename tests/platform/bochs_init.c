/* The first and only process of the machine that bochs.sh boots: runs a program and says how it
 * ended. bochs.sh ends the machine, once the serial port has delivered that. */
#include <stdio.h>
#include <sys/wait.h>
#include <termios.h>
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
    tcdrain(STDOUT_FILENO);
    for (;;)
        pause();
}
