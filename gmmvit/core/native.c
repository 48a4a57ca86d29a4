// softmax(M * (scale Q K^T) + B) V and its gradients on a CPU, head by head in its caches: no N x N array in memory.
// Operands are float32 or bfloat16, all sums float32. Vectors are GNU C's, which GCC and Clang have everywhere.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define ROWS 8 // queries that are handled at once
#define INLINE inline __attribute__((always_inline))
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef float quarter __attribute__((vector_size(LANES), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2)));

typedef struct { // an operand (images, heads, tokens, width): strides in elements; channels lie side by side
    char *at;
    int64_t image, head, token, half; // half: bfloat16
} Tensor;

typedef struct {
    int64_t images, heads, queries, keys, width, threads, chunks, together;
    Tensor q, k, v, out, dout, dq, dk, dv;
    Tensor bias, dbias; // (images or 1, heads or 1, queries, keys), or absent; strides of 0 where it is shared
    float *factor, *log_sum; // (heads or 1, queries, keys) or absent; (images, heads, queries)
    float *dfactor, *dshared; // (heads, chunks, queries, keys): gradients of factor and of a bias that images share
    int64_t factor_head; // stride
    float scale;
} Call;

static const vec LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static inline int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }
static inline vec splat(float x) { return x - (vec){0}; }
static inline vec load(const float *from) { return *(const vec *)from; }
static inline void store(float *to, vec x) { *(vec *)to = x; }
static inline vec pick(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

static inline vec load_some(const float *from, int64_t n) {
    vec x = {0};
    if (n >= LANES) return load(from);
    memcpy(&x, from, 4 * n);
    return x;
}

static inline void store_some(float *to, vec x, int64_t n) {
    if (n >= LANES) store(to, x);
    else memcpy(to, &x, 4 * n);
}

static inline vec larger(vec x, vec y) { return pick(x > y, x, y); }

static inline float sum(vec x) {
    quarter part[4];
    memcpy(part, &x, sizeof part);
    quarter of_four = (part[0] + part[1]) + (part[2] + part[3]);
    return (of_four[0] + of_four[1]) + (of_four[2] + of_four[3]);
}

static inline float largest(vec x) {
    float most[LANES];
    memcpy(most, &x, sizeof most);
    for (int apart = LANES / 2; apart; apart /= 2)
        for (int i = 0; i < apart; i++) most[i] = most[i] > most[i + apart] ? most[i] : most[i + apart];
    return most[0];
}

// e^x for x <= 0, to some units of the last place; 0 below -87; NaN stays
static inline vec exponential(vec x) {
    ivec never = x < splat(-87.0f);
    x = pick(never, splat(-87.0f), x);
    const vec magic = splat(12582912.0f); // 1.5 * 2^23: adding it rounds to a whole number
    vec shifted = x * 1.44269504f + magic, whole = shifted - magic;
    vec rest = x - whole * 0.693359375f + whole * 2.12194440e-4f; // ln 2 in two parts
    vec y = splat(1.0f / 720); // the series of e^x, to x^6
    y = y * rest + 1.0f / 120;
    y = y * rest + 1.0f / 24;
    y = y * rest + 1.0f / 6;
    y = y * rest + 0.5f;
    y = y * rest * rest + rest + 1.0f;
    y = (vec)((ivec)y + ((ivec)shifted << 23));
    return pick(never, (vec){0}, y);
}

// c (ROWS, n) = a (ROWS, k) b (k, n), n a multiple of LANES
static INLINE void panel(
    const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc, int64_t k, int wide) {
    vec acc[ROWS][2] = {0};
    for (int64_t i = 0; i < k; i++) {
        vec b0 = load(b + i * ldb), b1 = wide > 1 ? load(b + i * ldb + LANES) : b0;
        for (int r = 0; r < ROWS; r++) {
            vec each = splat(a[r * lda + i]);
            acc[r][0] += each * b0;
            if (wide > 1) acc[r][1] += each * b1;
        }
    }
    for (int r = 0; r < ROWS; r++) {
        store(c + r * ldc, acc[r][0]);
        if (wide > 1) store(c + r * ldc + LANES, acc[r][1]);
    }
}

static void product(const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc, int64_t k,
                    int64_t n) {
    int64_t j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) panel(a, lda, b + j, ldb, c + j, ldc, k, 2);
    if (j < n) panel(a, lda, b + j, ldb, c + j, ldc, k, 1);
}

// c (n, width) += a (ROWS, n)^T b (ROWS, width)
static INLINE void outer_of(const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t n,
                            int64_t width) {
    for (int64_t w = 0; w < width; w += LANES) {
        vec each[ROWS];
        for (int r = 0; r < ROWS; r++) each[r] = load(b + r * ldb + w);
        for (int64_t j = 0; j < n; j++) {
            vec x = load(c + j * width + w), y = {0};
            for (int r = 0; r < ROWS; r += 2) {
                x += a[r * lda + j] * each[r];
                y += a[(r + 1) * lda + j] * each[r + 1];
            }
            store(c + j * width + w, x + y);
        }
    }
}

static void outer(const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t n, int64_t width) {
    if (width == LANES) outer_of(a, lda, b, LANES, c, n, LANES);
    else outer_of(a, lda, b, ldb, c, n, width);
}

// (rows, columns) to (columns, rows)
static void transpose(const float *from, float *to, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i += LANES)
        for (int64_t j = 0; j < columns; j++) {
            vec x;
            for (int l = 0; l < LANES; l++) x[l] = from[(i + l) * columns + j];
            store(to + j * rows + i, x);
        }
}

// ---- operands -------------------------------------------------------------------------------------------------------

static inline int64_t size_of(int64_t half) { return half ? 2 : 4; }

static inline char *row_of(const Tensor *t, int64_t image, int64_t head, int64_t token) {
    return t->at + (image * t->image + head * t->head + token * t->token) * size_of(t->half);
}

static inline vec read(const char *from, int64_t half, int64_t n) { // n numbers, zeros after them
    if (!half) return load_some((const float *)from, n);
    halves x = {0};
    if (n >= LANES) x = *(const halves *)from;
    else memcpy(&x, from, 2 * n);
    return (vec)(__builtin_convertvector(x, uvec) << 16);
}

static inline void write(char *to, int64_t half, vec x, int64_t n) {
    if (!half) {
        store_some((float *)to, x, n);
        return;
    }
    uvec bits = (uvec)x;
    bits += 0x7fff + ((bits >> 16) & 1); // to the nearest, of two the even one
    halves y = __builtin_convertvector(bits >> 16, halves);
    if (n >= LANES) *(halves *)to = y;
    else memcpy(to, &y, 2 * n);
}

static INLINE void gather_as(const char *from, int64_t step, int64_t half, int64_t rows, int64_t width, float scale,
                             float *to) {
    for (int64_t i = 0; i < rows; i++, from += step, to += padded(width))
        for (int64_t c = 0; c < width; c += LANES)
            store(to + c, read(from + c * size_of(half), half, width - c) * scale);
}

// The rows of one image and head as (rows, padded(width)) of float32, and zeros below them
static void gather(const Tensor *t, int64_t image, int64_t head, int64_t first, int64_t rows, int64_t whole,
                   int64_t width, float scale, float *to) {
    const char *from = row_of(t, image, head, first);
    if (t->half && width == LANES) gather_as(from, 2 * t->token, 1, rows, LANES, scale, to);
    else gather_as(from, t->token * size_of(t->half), t->half, rows, width, scale, to);
    if (rows < whole) memset(to + rows * padded(width), 0, (whole - rows) * padded(width) * sizeof *to);
}

// Asks for the rows of some heads of an image before they are read: they lie apart, which no processor foresees
static void expect(const Tensor *t, int64_t image, int64_t head, int64_t heads, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t at = 0; at < heads * width * size_of(t->half); at += 64)
            __builtin_prefetch(row_of(t, image, head, i) + at, 0, 2);
}

static void expect_all(const Call *a, int64_t image, int64_t head) {
    if (image >= a->images || head % a->together) return;
    expect(&a->q, image, head, a->together, a->queries, a->width);
    expect(&a->k, image, head, a->together, a->keys, a->width);
    expect(&a->v, image, head, a->together, a->keys, a->width);
    if (a->dout.at) expect(&a->dout, image, head, a->together, a->queries, a->width);
}

static INLINE void scatter_as(char *to, int64_t step, int64_t half, int64_t rows, int64_t width, const float *from) {
    for (int64_t i = 0; i < rows; i++, to += step, from += padded(width))
        for (int64_t c = 0; c < width; c += LANES) write(to + c * size_of(half), half, load(from + c), width - c);
}

static void scatter(const Tensor *t, int64_t image, int64_t head, int64_t first, int64_t rows, int64_t width,
                    const float *from) {
    char *to = row_of(t, image, head, first);
    if (t->half && width == LANES) scatter_as(to, 2 * t->token, 1, rows, LANES, from);
    else scatter_as(to, t->token * size_of(t->half), t->half, rows, width, from);
}

// ---- one row of scores ----------------------------------------------------------------------------------------------

typedef struct { // what a query's scores meet: times the factor, plus the bias; where a gradient goes
    const float *factor;
    const char *bias;
    int64_t half;
    float *dfactor, *dshared;
    char *dbias;
    int64_t dhalf;
} Masks;

static INLINE vec masked(vec x, const Masks *m, int64_t j, int64_t n) {
    if (m->factor) x *= load_some(m->factor + j, n);
    if (m->bias) x += read(m->bias + j * size_of(m->half), m->half, n);
    return n < LANES ? pick(LANE >= splat(n), splat(-INFINITY), x) : x;
}

// The largest score, with the masks in the row
static INLINE vec mask_row(float *row, const Masks *m, int64_t keys) {
    vec most = splat(-INFINITY);
    for (int64_t j = 0; j + LANES <= keys; j += LANES) {
        vec x = masked(load(row + j), m, j, LANES);
        store(row + j, x);
        most = larger(x, most);
    }
    if (keys % LANES) {
        const int64_t j = keys - keys % LANES;
        vec x = masked(load(row + j), m, j, keys % LANES);
        store(row + j, x);
        most = larger(x, most);
    }
    return most;
}

static INLINE vec probability(const float *row, const float *drow, float *p, const Masks *m, float log_sum, int64_t j,
                              int64_t n) {
    vec e = exponential(masked(load(row + j), m, j, n) - log_sum);
    store(p + j, e);
    return e * load(drow + j);
}

static INLINE void gradient(const float *row, float *drow, const float *p, const Masks *m, float mean, int64_t j,
                            int64_t n) {
    vec x = load(p + j) * (load(drow + j) - mean);
    if (m->dshared) store_some(m->dshared + j, load_some(m->dshared + j, n) + x, n);
    if (m->dbias) write(m->dbias + j * size_of(m->dhalf), m->dhalf, x, n);
    if (m->dfactor) store_some(m->dfactor + j, load_some(m->dfactor + j, n) + x * load(row + j), n);
    if (m->factor) x *= load_some(m->factor + j, n);
    store(drow + j, x);
}

// From a row of scores and of the probabilities' gradient: the probabilities, and the scores' gradient in place
static INLINE void row_backward(const float *row, float *drow, float *p, const Masks *m, float log_sum, int64_t keys) {
    const int64_t whole = keys - keys % LANES, rest = keys % LANES;
    vec both = {0};
    for (int64_t j = 0; j < whole; j += LANES) both += probability(row, drow, p, m, log_sum, j, LANES);
    if (rest) both += probability(row, drow, p, m, log_sum, whole, rest);
    const float mean = sum(both);
    for (int64_t j = 0; j < whole; j += LANES) gradient(row, drow, p, m, mean, j, LANES);
    if (rest) gradient(row, drow, p, m, mean, whole, rest);
}

// ---- forward --------------------------------------------------------------------------------------------------------

static void forward_head(const Call *call, int64_t image, int64_t head, float *room) {
    const Call a = *call;
    const int64_t keys = padded(a.keys), width = padded(a.width);
    float *k = room, *across = k + keys * width, *v = across + keys * width, *q = v + keys * width,
          *s = q + ROWS * width, *o = s + ROWS * keys, *log_sum = a.log_sum + (image * a.heads + head) * a.queries;
    gather(&a.k, image, head, 0, a.keys, keys, a.width, 1, k);
    gather(&a.v, image, head, 0, a.keys, keys, a.width, 1, v);
    transpose(k, across, keys, width);
    for (int64_t first = 0; first < a.queries; first += ROWS) {
        const int64_t rows = a.queries - first < ROWS ? a.queries - first : ROWS;
        float all[ROWS];
        gather(&a.q, image, head, first, rows, ROWS, a.width, a.scale, q);
        product(q, width, across, keys, s, keys, width, keys);
        for (int64_t r = 0; r < rows; r++) {
            const Masks m = {.factor = a.factor ? a.factor + head * a.factor_head + (first + r) * a.keys : NULL,
                             .bias = a.bias.at ? row_of(&a.bias, image, head, first + r) : NULL,
                             .half = a.bias.half};
            float *row = s + r * keys;
            const Masks factor = {.factor = m.factor}, none = {0}; // known to the compiler: it makes a loop for each
            const float top = largest(m.bias     ? mask_row(row, &m, a.keys)
                                      : m.factor ? mask_row(row, &factor, a.keys)
                                                 : mask_row(row, &none, a.keys));
            vec total = {0};
            for (int64_t j = 0; j < a.keys; j += LANES) {
                vec e = exponential(load(row + j) - top);
                store(row + j, e);
                total += e;
            }
            all[r] = sum(total);
            log_sum[first + r] = top;
        }
        for (int64_t r = 0; r < rows; r++) log_sum[first + r] += logf(all[r]);
        product(s, keys, v, width, o, width, a.keys, width);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < width; c += LANES) store(o + r * width + c, load(o + r * width + c) / all[r]);
        scatter(&a.out, image, head, first, rows, a.width, o);
    }
}

// ---- backward -------------------------------------------------------------------------------------------------------

static void backward_head(const Call *call, int64_t image, int64_t head, float *dfactor, float *dshared, float *room) {
    const Call a = *call;
    const int64_t keys = padded(a.keys), width = padded(a.width);
    float *k = room, *k_across = k + keys * width, *v = k_across + keys * width, *v_across = v + keys * width,
          *dk = v_across + keys * width, *dv = dk + keys * width, *q = dv + keys * width, *dq = q + ROWS * width,
          *dout = dq + ROWS * width, *s = dout + ROWS * width, *p = s + ROWS * keys, *ds = p + ROWS * keys;
    gather(&a.k, image, head, 0, a.keys, keys, a.width, 1, k);
    gather(&a.v, image, head, 0, a.keys, keys, a.width, 1, v);
    transpose(k, k_across, keys, width);
    transpose(v, v_across, keys, width);
    memset(dk, 0, 2 * keys * width * sizeof *dk);
    for (int64_t first = 0; first < a.queries; first += ROWS) {
        const int64_t rows = a.queries - first < ROWS ? a.queries - first : ROWS;
        gather(&a.q, image, head, first, rows, ROWS, a.width, a.scale, q);
        gather(&a.dout, image, head, first, rows, ROWS, a.width, 1, dout);
        product(q, width, k_across, keys, s, keys, width, keys);
        product(dout, width, v_across, keys, ds, keys, width, keys);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = (first + r) * a.keys;
            const float log_sum = a.log_sum[(image * a.heads + head) * a.queries + first + r];
            const Masks m = {.factor = a.factor ? a.factor + head * a.factor_head + at : NULL,
                             .bias = a.bias.at ? row_of(&a.bias, image, head, first + r) : NULL,
                             .half = a.bias.half,
                             .dfactor = dfactor ? dfactor + at : NULL,
                             .dshared = dshared ? dshared + at : NULL,
                             .dbias = a.dbias.at ? row_of(&a.dbias, image, head, first + r) : NULL,
                             .dhalf = a.dbias.half};
            const Masks learned = {.factor = m.factor, .dfactor = m.dfactor}, fixed = {.factor = m.factor};
            float *row = s + r * keys, *drow = ds + r * keys, *prow = p + r * keys;
            if (m.bias) row_backward(row, drow, prow, &m, log_sum, a.keys);
            else if (m.dfactor) row_backward(row, drow, prow, &learned, log_sum, a.keys);
            else row_backward(row, drow, prow, &fixed, log_sum, a.keys);
        }
        memset(p + rows * keys, 0, (ROWS - rows) * keys * sizeof *p);
        memset(ds + rows * keys, 0, (ROWS - rows) * keys * sizeof *ds);
        product(ds, keys, k, width, dq, width, a.keys, width);
        for (int64_t i = 0; i < ROWS * width; i += LANES) store(dq + i, load(dq + i) * a.scale);
        scatter(&a.dq, image, head, first, rows, a.width, dq);
        outer(ds, keys, q, width, dk, a.keys, width);
        outer(p, keys, dout, width, dv, a.keys, width);
    }
    scatter(&a.dk, image, head, 0, a.keys, a.width, dk);
    scatter(&a.dv, image, head, 0, a.keys, a.width, dv);
}

// ---- all images and heads -------------------------------------------------------------------------------------------

static float *room_for(int64_t floats) { return aligned_alloc(64, (4 * floats + 63) / 64 * 64); }

int attention_forward(const Call *a) { // 0, or not where there is no memory
    const int64_t keys = padded(a->keys), width = padded(a->width);
    int failed = 0;
#pragma omp parallel num_threads(a->threads) reduction(| : failed)
    {
        float *room = room_for(3 * keys * width + 2 * ROWS * width + ROWS * keys);
        failed = room == NULL;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < a->images * a->heads; i++) {
            if (!room) continue;
            expect_all(a, i / a->heads + 1, i % a->heads);
            forward_head(a, i / a->heads, i % a->heads, room);
        }
        free(room);
    }
    return failed;
}

// Some images with some heads are one thread's, so that gradients of masks add up in one order on any number of threads
int attention_backward(const Call *a) {
    const int64_t keys = padded(a->keys), width = padded(a->width), pairs = a->queries * a->keys;
    const int64_t groups = (a->heads + a->together - 1) / a->together;
    int failed = 0;
#pragma omp parallel num_threads(a->threads) reduction(| : failed)
    {
        float *room = room_for(6 * keys * width + 3 * ROWS * width + 3 * ROWS * keys);
        failed = room == NULL;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < groups * a->chunks; i++) {
            const int64_t chunk = i % a->chunks, first = i / a->chunks * a->together;
            const int64_t end = first + a->together < a->heads ? first + a->together : a->heads;
            for (int64_t image = chunk * a->images / a->chunks; image < (chunk + 1) * a->images / a->chunks; image++)
                for (int64_t head = first; room && head < end; head++) {
                    const int64_t at = (head * a->chunks + chunk) * pairs;
                    expect_all(a, image + 1, head);
                    backward_head(a, image, head, a->dfactor ? a->dfactor + at : NULL,
                                  a->dshared ? a->dshared + at : NULL, room);
                }
        }
        free(room);
    }
    return failed;
}

// ---- layer norm: (x - mean) / sqrt(variance + eps) * weight + bias, over rows of one memory --------------------------

typedef struct {
    int64_t rows, width, half, threads, chunks;
    char *x, *out, *dout, *dx;
    float *weight, *bias, *mean, *inverse; // (width,), (width,), (rows,), (rows,)
    float *dweight, *dbias; // (chunks, width)
    float eps;
} Norm;

static void norm_row(const Norm *a, int64_t row) {
    const int64_t at = row * a->width * size_of(a->half), width = a->width;
    vec total = {0}, squares = {0};
    for (int64_t c = 0; c < width; c += LANES) total += read(a->x + at + c * size_of(a->half), a->half, width - c);
    const float mean = sum(total) / width;
    for (int64_t c = 0; c < width; c += LANES) {
        vec x = read(a->x + at + c * size_of(a->half), a->half, width - c) - mean;
        squares += width - c < LANES ? pick(LANE < splat(width - c), x * x, (vec){0}) : x * x;
    }
    const float inverse = 1 / sqrtf(sum(squares) / width + a->eps);
    for (int64_t c = 0; c < width; c += LANES) {
        vec x = (read(a->x + at + c * size_of(a->half), a->half, width - c) - mean) * inverse;
        x = x * load_some(a->weight + c, width - c) + load_some(a->bias + c, width - c);
        write(a->out + at + c * size_of(a->half), a->half, x, width - c);
    }
    a->mean[row] = mean, a->inverse[row] = inverse;
}

static void norm_row_backward(const Norm *a, int64_t row, float *dweight, float *dbias) {
    const int64_t at = row * a->width * size_of(a->half), width = a->width;
    const float mean = a->mean[row], inverse = a->inverse[row];
    vec of_g = {0}, of_gx = {0};
    for (int64_t c = 0; c < width; c += LANES) {
        const int64_t n = width - c, here = at + c * size_of(a->half);
        vec x = (read(a->x + here, a->half, n) - mean) * inverse, dout = read(a->dout + here, a->half, n);
        vec g = dout * load_some(a->weight + c, n);
        of_g += g;
        of_gx += g * x;
        store_some(dweight + c, load_some(dweight + c, n) + dout * x, n);
        store_some(dbias + c, load_some(dbias + c, n) + dout, n);
    }
    const float g_mean = sum(of_g) / width, gx_mean = sum(of_gx) / width;
    for (int64_t c = 0; c < width; c += LANES) {
        const int64_t n = width - c, here = at + c * size_of(a->half);
        vec x = (read(a->x + here, a->half, n) - mean) * inverse;
        vec g = read(a->dout + here, a->half, n) * load_some(a->weight + c, n);
        write(a->dx + here, a->half, (g - g_mean - x * gx_mean) * inverse, n);
    }
}

void norm_forward(const Norm *a) {
#pragma omp parallel for num_threads(a->threads) schedule(static)
    for (int64_t row = 0; row < a->rows; row++) norm_row(a, row);
}

void norm_backward(const Norm *a) {
#pragma omp parallel for num_threads(a->threads) schedule(static)
    for (int64_t chunk = 0; chunk < a->chunks; chunk++)
        for (int64_t row = chunk * a->rows / a->chunks; row < (chunk + 1) * a->rows / a->chunks; row++)
            norm_row_backward(a, row, a->dweight + chunk * a->width, a->dbias + chunk * a->width);
}
