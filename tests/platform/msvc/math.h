/* Mathematical functions of C11 that the core uses: for syntax checks. */
#define INFINITY ((float)(1e300 * 1e300))
#define NAN (-(float)(INFINITY * 0.0f))
#define isnan(x) ((x) != (x))
#define isinf(x) ((x) == INFINITY || (x) == -INFINITY)
#define isfinite(x) (!isnan(x) && !isinf(x))

int signbit(double x);
double fma(double x, double y, double z);
float fmaf(float x, float y, float z);
double fabs(double x);
float fabsf(float x);
double fmax(double x, double y);
float fmaxf(float x, float y);
double fmin(double x, double y);
float fminf(float x, float y);
double sqrt(double x);
float sqrtf(float x);
double ldexp(double x, int exponent);
