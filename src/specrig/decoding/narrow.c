/* One narrow forward pass of a Llama-shaped model on a processor, as one call. See decoding/narrow.py.
 *
 * Activations are float32; weights, cache and results are of the model's type (float32 or bfloat16). Every sum runs in an order that
 * depends on nothing but the token's own context: not on the other tokens of the pass, their number or their places. So a token's
 * logits have the same bits in plain decoding, in a verified chain and on a tree's path.
 *
 * Work is split by outputs: each thread computes its share of a product's columns or of the attention's heads; a barrier follows.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <omp.h>

#define W 16 /* floats in a vector; all widths are multiples of it */
typedef float vec __attribute__((vector_size(4 * W), aligned(4)));
typedef uint32_t bits __attribute__((vector_size(4 * W), aligned(4)));
typedef uint16_t half __attribute__((vector_size(2 * W), aligned(2)));

typedef struct {
    const void *norm_1, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *out_bias, *norm_2, *gate_up, *down;
    void *keys, *values;  /* [B, K, S, d] */
    const uint8_t *mask;  /* [B or 1, n, end]: which slots a token sees; null: all */
    void *stream;         /* [B * n, D]: the residual stream before this layer goes here; null: nowhere */
} Layer;

typedef struct {
    int64_t layers, D, H, K, d, I, V, bf16, threads;
    double eps;
    const void *embedding, *norm, *head;
    const float *cos, *sin; /* [S, d]; the sign of rotate_half is in `sin` */
    Layer *layer;
    /* of one pass */
    int64_t B, n, end, S, mask_rows, wanted; /* mask_rows: B or 1 */
    const int64_t *tokens, *positions, *slots; /* [B * n] */
    const int64_t *rows; /* [wanted]: the tokens whose logits are asked for */
    void *hidden, *logits; /* [B * n, D] after the final norm, [wanted, V] */
    float *room;
} Pass;

static inline vec load(const void *from, int64_t at, int bf16) {
    if (!bf16) return *(const vec *)((const float *)from + at);
    bits wide = __builtin_convertvector(*(const half *)((const uint16_t *)from + at), bits) << 16;
    vec found;
    memcpy(&found, &wide, sizeof found);
    return found;
}

static inline float get(const void *from, int64_t at, int bf16) {
    if (!bf16) return ((const float *)from)[at];
    uint32_t wide = (uint32_t)((const uint16_t *)from)[at] << 16;
    float found;
    memcpy(&found, &wide, 4);
    return found;
}

static inline void put(void *to, int64_t at, float value, int bf16) {
    if (!bf16) { ((float *)to)[at] = value; return; }
    uint32_t wide;
    memcpy(&wide, &value, 4);
    /* Round to the nearest, ties to even; what is no number stays none. */
    ((uint16_t *)to)[at] = value != value ? 0x7fc0 : (uint16_t)((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
}

static inline __attribute__((always_inline)) float sum(vec x) {
    typedef int32_t places __attribute__((vector_size(4 * W)));
    x += __builtin_shuffle(x, (places){8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
    x += __builtin_shuffle(x, (places){4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
    x += __builtin_shuffle(x, (places){2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
    x += __builtin_shuffle(x, (places){1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14});
    return x[0];
}

static void rms_norm(float *to, const float *x, const void *weight, int64_t D, double eps, int bf16) {
    vec squares = {0};
    for (int64_t i = 0; i < D; i += W) squares += load(x, i, 0) * load(x, i, 0);
    float scale = 1.0f / sqrtf(sum(squares) / D + (float)eps);
    for (int64_t i = 0; i < D; i += W) *(vec *)(to + i) = load(x, i, 0) * scale * load(weight, i, bf16);
}

/* R rows of x against 4 rows of the weight, each in one accumulator: y[r][c] = x[r] . weight[c]. Loops are unrolled, or the
 * accumulators would live in memory. */
#define EACH(i, count) _Pragma("GCC unroll 4") for (int i = 0; i < count; i++)
#define TILE(R) \
    static inline __attribute__((always_inline)) void tile##R(float y[][4], const float *x, const void *w, const int64_t *at, int64_t in, int bf16) { \
        vec acc[R][4]; \
        EACH(r, R) EACH(c, 4) acc[r][c] = (vec){0}; \
        for (int64_t i = 0; i < in; i += W) { \
            vec weight[4]; \
            EACH(c, 4) weight[c] = load(w, at[c] + i, bf16); \
            EACH(r, R) { \
                vec own = load(x + r * in, i, 0); \
                EACH(c, 4) acc[r][c] += own * weight[c]; \
            } \
        } \
        EACH(r, R) EACH(c, 4) y[r][c] = sum(acc[r][c]); \
    }
TILE(1) TILE(2) TILE(3) TILE(4)

/* y[r][0..3] of all rows for the weight's rows that begin at `at`. */
static inline __attribute__((always_inline)) void columns_of(float y[][4], const float *x, int64_t rows, const void *w, const int64_t *at, int64_t in, int bf16) {
    for (int64_t r = 0; r < rows; r += 4) switch (rows - r) {
        case 1: tile1(y + r, x + r * in, w, at, in, bf16); break;
        case 2: tile2(y + r, x + r * in, w, at, in, bf16); break;
        case 3: tile3(y + r, x + r * in, w, at, in, bf16); break;
        default: tile4(y + r, x + r * in, w, at, in, bf16);
    }
}

/* Columns [from, to) of y [rows, out] = x [rows, in] weight [out, in]^T + bias, added to y where `onto`; as the model's type where `store`. */
static inline __attribute__((always_inline)) void product_in(void *y, const float *x, int64_t rows, const void *weight, const void *bias, int64_t in, int64_t out,
                       int64_t from, int64_t to, int onto, int store, float found[][4], int bf16) {
    for (int64_t j = from; j < to; j += 4) {
        int64_t last = out - 1, at[4] = {j * in, (j + 1 < out ? j + 1 : last) * in, (j + 2 < out ? j + 2 : last) * in, (j + 3 < out ? j + 3 : last) * in};
        columns_of(found, x, rows, weight, at, in, bf16);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < 4 && j + c < to; c++) {
                float value = found[r][c] + (bias ? get(bias, j + c, bf16) : 0.0f);
                if (onto) ((float *)y)[r * out + j + c] += value;
                else put(y, r * out + j + c, value, store && bf16);
            }
    }
}

static void product(void *y, const float *x, int64_t rows, const void *weight, const void *bias, int64_t in, int64_t out, int64_t from,
                    int64_t to, int onto, int store, float found[][4], int bf16) {
    if (bf16) product_in(y, x, rows, weight, bias, in, out, from, to, onto, store, found, 1);
    else product_in(y, x, rows, weight, bias, in, out, from, to, onto, store, found, 0);
}

/* Columns [from, to) of y [rows, I] = SiLU(x gate^T) (x up^T); two of the gate and two of the up projection at a time. */
static inline __attribute__((always_inline)) void swiglu_in(float *y, const float *x, int64_t rows, const void *gate_up, int64_t in, int64_t I, int64_t from, int64_t to, float found[][4], int bf16) {
    for (int64_t j = from; j < to; j += 2) {
        int64_t next = j + 1 < I ? j + 1 : j, at[4] = {j * in, (I + j) * in, next * in, (I + next) * in};
        columns_of(found, x, rows, gate_up, at, in, bf16);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < 2 && j + c < to; c++) {
                float gate = found[r][2 * c], up = found[r][2 * c + 1];
                y[r * I + j + c] = gate / (1.0f + expf(-gate)) * up;
            }
    }
}

/* A head's d numbers, normed where the model does that, then rotated by its position (2104.09864, section 3.4). */
static void rotate(float *to, float *x, const void *norm, const Pass *p, int64_t position, int bf16) {
    if (norm) rms_norm(x, x, norm, p->d, p->eps, bf16);
    const float *cos = p->cos + position * p->d, *sin = p->sin + position * p->d;
    for (int64_t i = 0, h = p->d / 2; i < p->d; i++) to[i] = x[i] * cos[i] + x[i < h ? i + h : i - h] * sin[i];
}

/* Attention of one query q [d] over the slots that it sees, in the order of the slots; what it does not see adds nothing. */
static inline __attribute__((always_inline)) void attend(float *to, const float *q, const void *keys, const void *values, const uint8_t *mask, int64_t end, int64_t d, float *scores, int bf16) {
    float highest = -INFINITY, total = 0.0f, scale = 1.0f / sqrtf((float)d);
    for (int64_t s = 0; s < end; s++) {
        if (mask && !mask[s]) continue;
        vec dot = {0};
        for (int64_t i = 0; i < d; i += W) dot += load(q, i, 0) * load(keys, s * d + i, bf16);
        scores[s] = sum(dot) * scale;
        if (scores[s] > highest) highest = scores[s];
    }
    memset(to, 0, d * sizeof *to);
    for (int64_t s = 0; s < end; s++) {
        if (mask && !mask[s]) continue;
        float weight = expf(scores[s] - highest);
        total += weight;
        for (int64_t i = 0; i < d; i += W) *(vec *)(to + i) += weight * load(values, s * d + i, bf16);
    }
    for (int64_t i = 0; i < d; i++) to[i] /= total;
}

static inline int64_t shared(int64_t rows, const Pass *p) { /* floats that all threads share */
    return rows * (p->D + (p->H + 2 * p->K) * p->d + p->H * p->d + p->I);
}

static inline int64_t own(int64_t rows, const Pass *p) { /* floats of each thread */
    return (rows * p->D + rows * 4 + p->S + W - 1) / W * W;
}

int64_t room(const Pass *p) { return shared(p->B * p->n, p) + own(p->B * p->n, p) * p->threads; }

/* A thread's share of `count` pieces of `step` each. */
#define SHARE(count, step) \
    int64_t pieces = ((count) + (step) - 1) / (step), from = pieces * t / T * (step), to = pieces * (t + 1) / T * (step); \
    if (to > (count)) to = (count);

static inline __attribute__((always_inline)) void run(const Pass *p, int t, int T, int bf16) {
    const int64_t rows = p->B * p->n, D = p->D, H = p->H, K = p->K, d = p->d, I = p->I, Q = (H + 2 * K) * d;
    float *x = p->room, *qkv = x + rows * D, *attended = qkv + rows * Q, *inner = attended + rows * H * d;
    float *mine = inner + rows * I + own(rows, p) * t, *normed = mine, *scores = mine + rows * D + rows * 4;
    float(*found)[4] = (float(*)[4])(mine + rows * D);
    { SHARE(rows, 1) for (int64_t r = from; r < to; r++) for (int64_t i = 0; i < D; i++) x[r * D + i] = get(p->embedding, p->tokens[r] * D + i, bf16); }
    #pragma omp barrier
    for (int64_t l = 0; l < p->layers; l++) {
        const Layer *layer = p->layer + l;
        if (layer->stream) { SHARE(rows * D, 1) for (int64_t i = from; i < to; i++) put(layer->stream, i, x[i], bf16); }
        for (int64_t r = 0; r < rows; r++) rms_norm(normed + r * D, x + r * D, layer->norm_1, D, p->eps, bf16);
        { SHARE(Q, 4) product(qkv, normed, rows, layer->qkv, layer->qkv_bias, D, Q, from, to, 0, 0, found, bf16); }
        #pragma omp barrier
        { SHARE(rows * K, 1) for (int64_t item = from; item < to; item++) { /* keys and values into the cache */
            int64_t r = item / K, head = item % K, place = ((r / p->n * K + head) * p->S + p->slots[r]) * d;
            float *key = qkv + r * Q + (H + head) * d, *value = key + K * d;
            rotate(normed, key, layer->k_norm, p, p->positions[r], bf16);
            for (int64_t i = 0; i < d; i++) put(layer->keys, place + i, normed[i], bf16), put(layer->values, place + i, value[i], bf16);
        } }
        #pragma omp barrier
        { SHARE(rows * H, 1) for (int64_t item = from; item < to; item++) {
            int64_t r = item / H, head = item % H, b = r / p->n, place = (b * K + head / (H / K)) * p->S * d * (bf16 ? 2 : 4);
            const uint8_t *mask = layer->mask ? layer->mask + ((p->mask_rows > 1 ? b : 0) * p->n + r % p->n) * p->end : 0;
            rotate(normed, qkv + r * Q + head * d, layer->q_norm, p, p->positions[r], bf16);
            attend(attended + item * d, normed, (const char *)layer->keys + place, (const char *)layer->values + place, mask, p->end, d, scores, bf16);
        } }
        #pragma omp barrier
        { SHARE(D, 4) product(x, attended, rows, layer->out, layer->out_bias, H * d, D, from, to, 1, 0, found, bf16); }
        #pragma omp barrier
        for (int64_t r = 0; r < rows; r++) rms_norm(normed + r * D, x + r * D, layer->norm_2, D, p->eps, bf16);
        { SHARE(I, 2) swiglu_in(inner, normed, rows, layer->gate_up, D, I, from, to, found, bf16); }
        #pragma omp barrier
        { SHARE(D, 4) product(x, inner, rows, layer->down, 0, I, D, from, to, 1, 0, found, bf16); }
        #pragma omp barrier
    }
    for (int64_t r = 0; r < rows; r++) {
        rms_norm(normed + r * D, x + r * D, p->norm, D, p->eps, bf16);
        if (t == 0) for (int64_t i = 0; i < D; i++) put(p->hidden, r * D + i, normed[r * D + i], bf16);
    }
    for (int64_t i = 0; i < p->wanted; i++) memmove(normed + i * D, normed + p->rows[i] * D, D * sizeof *normed);
    { SHARE(p->V, 4) product(p->logits, normed, p->wanted, p->head, 0, D, p->V, from, to, 0, 1, found, bf16); }
}

void forward(const Pass *p) {
    #pragma omp parallel num_threads(p->threads)
    {
        int t = omp_get_thread_num(), T = omp_get_num_threads();
        if (p->bf16) run(p, t, T, 1); else run(p, t, T, 0);
    }
}
