/* A trainer in C in the style of llm.c: one file, a small GPT on bytes, and its own reference
 * kernels. Terrace runs the optimizer: AdamW's state is on a drive, and a step's updates overlap
 * with the next step's forward, which waits for each layer's parameters where it needs them.
 *
 *   c_trainer TEXT DIRECTORY    trains on a file, with the state in DIRECTORY. Halfway it saves,
 *                               ends the session, and goes on in another. A training in memory
 *                               without a stop must give the same parameters, bit by bit.
 *
 * This builds it with the installed library, whose terrace.pc must be on PKG_CONFIG_PATH (-lm: its
 * kernels call tanhf() and other functions of libm):
 *
 *   cc -O2 c_trainer.c -o c_trainer $(pkg-config --cflags --libs terrace) -lm
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <terrace.h>

enum { V = 256, B = 4, T = 32, C = 48, H = 4, L = 2, N = B * T, STEPS = 40 };
enum { WTE, WPE, LNFW, LNFB, FIRST_LAYER };
enum { LN1W, LN1B, QKVW, QKVB, PROJW, PROJB, LN2W, LN2B, FCW, FCB, OUTW, OUTB, OF_LAYER };
enum { TENSORS = FIRST_LAYER + OF_LAYER * L };

static const char* const kLayerNames[OF_LAYER] = {
    "ln_1.weight",      "ln_1.bias",        "attn.c_attn.weight", "attn.c_attn.bias",
    "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",        "ln_2.bias",
    "mlp.c_fc.weight",  "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};

typedef struct {
  char name[40];
  int64_t shape[2];
  int32_t dimensions;
  int64_t count;
  float *value, *gradient;
} Tensor;

typedef struct { /* what a layer's forward keeps for its backward */
  float in[N * C], ln1[N * C], qkv[N * 3 * C], attention[B * H * T * T], mixed[N * C], mid[N * C];
  float ln2[N * C], fc[N * 4 * C], gelu[N * 4 * C], mean[2][N], scale[2][N];
} Layer;

typedef struct {
  Tensor tensors[TENSORS];
  Layer layers[L];
  float x[N * C], lnf[N * C], mean[N], scale[N], probabilities[N * V];
  terrace_session* session;
  int is_stepping;
} Trainer;

static void done(terrace_error error) {
  if (error == TERRACE_OK) return;
  fprintf(stderr, "c_trainer: %s: %s\n", terrace_error_name(error), terrace_last_error());
  exit(1);
}

/* ---- kernels: y = x w' + b, layer norm, attention, GELU; a backward adds to gradients -------- */

static void linear(float* y, const float* x, const Tensor* w, const Tensor* b, int in) {
  const int out = (int)w->shape[0];
  for (int n = 0; n < N; n++) {
    for (int o = 0; o < out; o++) {
      float sum = b ? b->value[o] : 0;
      for (int i = 0; i < in; i++) sum += x[n * in + i] * w->value[o * in + i];
      y[n * out + o] = sum;
    }
  }
}

static void linear_backward(float* dx, const float* dy, const float* x, Tensor* w, Tensor* b) {
  const int out = (int)w->shape[0], in = (int)w->shape[1];
  memset(dx, 0, sizeof(float) * (size_t)(N * in));
  for (int n = 0; n < N; n++) {
    for (int o = 0; o < out; o++) {
      const float d = dy[n * out + o];
      if (b) b->gradient[o] += d;
      for (int i = 0; i < in; i++) {
        dx[n * in + i] += d * w->value[o * in + i];
        w->gradient[o * in + i] += d * x[n * in + i];
      }
    }
  }
}

static void norm(float* y, const float* x, const Tensor* w, const Tensor* b, float* mean,
                 float* scale) {
  for (int n = 0; n < N; n++, x += C, y += C) {
    float m = 0, v = 0;
    for (int c = 0; c < C; c++) m += x[c] / C;
    for (int c = 0; c < C; c++) v += (x[c] - m) * (x[c] - m) / C;
    mean[n] = m, scale[n] = 1 / sqrtf(v + 1e-5f);
    for (int c = 0; c < C; c++) y[c] = (x[c] - m) * scale[n] * w->value[c] + b->value[c];
  }
}

/* Adds to dx, which already has the gradient of the residual. */
static void norm_backward(float* dx, const float* dy, const float* x, Tensor* w, Tensor* b,
                          const float* mean, const float* scale) {
  for (int n = 0; n < N; n++, x += C, dx += C, dy += C) {
    float sum = 0, product = 0;
    for (int c = 0; c < C; c++) {
      const float hat = (x[c] - mean[n]) * scale[n];
      b->gradient[c] += dy[c];
      w->gradient[c] += dy[c] * hat;
      sum += dy[c] * w->value[c] / C;
      product += dy[c] * w->value[c] * hat / C;
    }
    for (int c = 0; c < C; c++) {
      const float hat = (x[c] - mean[n]) * scale[n];
      dx[c] += (dy[c] * w->value[c] - sum - hat * product) * scale[n];
    }
  }
}

enum { D = C / H };

static void attention(float* y, const float* qkv, float* weights) {
  for (int bh = 0; bh < B * H; bh++) {
    const float* at = qkv + (bh / H) * T * 3 * C + (bh % H) * D;
    for (int t = 0; t < T; t++) {
      float* row = weights + (bh * T + t) * T;
      float most = -1e30f, total = 0;
      for (int s = 0; s <= t; s++) {
        row[s] = 0;
        for (int d = 0; d < D; d++) row[s] += at[t * 3 * C + d] * at[s * 3 * C + C + d];
        row[s] /= sqrtf(D);
        most = fmaxf(most, row[s]);
      }
      for (int s = 0; s <= t; s++) total += row[s] = expf(row[s] - most);
      float* out = y + ((bh / H) * T + t) * C + (bh % H) * D;
      for (int d = 0; d < D; d++) out[d] = 0;
      for (int s = 0; s <= t; s++) {
        row[s] /= total;
        for (int d = 0; d < D; d++) out[d] += row[s] * at[s * 3 * C + 2 * C + d];
      }
    }
  }
}

static void attention_backward(float* dqkv, const float* dy, const float* qkv,
                               const float* weights) {
  memset(dqkv, 0, sizeof(float) * N * 3 * C);
  for (int bh = 0; bh < B * H; bh++) {
    const int begin = (bh / H) * T * 3 * C + (bh % H) * D;
    const float* at = qkv + begin;
    float* dat = dqkv + begin;
    for (int t = 0; t < T; t++) {
      const float* row = weights + (bh * T + t) * T;
      const float* d_out = dy + ((bh / H) * T + t) * C + (bh % H) * D;
      float d_row[T], sum = 0;
      for (int s = 0; s <= t; s++) {
        d_row[s] = 0;
        for (int d = 0; d < D; d++) {
          d_row[s] += d_out[d] * at[s * 3 * C + 2 * C + d];
          dat[s * 3 * C + 2 * C + d] += row[s] * d_out[d];
        }
        sum += row[s] * d_row[s];
      }
      for (int s = 0; s <= t; s++) {
        const float d_score = row[s] * (d_row[s] - sum) / sqrtf(D);
        for (int d = 0; d < D; d++) {
          dat[t * 3 * C + d] += d_score * at[s * 3 * C + C + d];
          dat[s * 3 * C + C + d] += d_score * at[t * 3 * C + d];
        }
      }
    }
  }
}

static const float kGelu = 0.7978845608f;

static float gelu(float x) { return 0.5f * x * (1 + tanhf(kGelu * (x + 0.044715f * x * x * x))); }

static float gelu_slope(float x) {
  const float t = tanhf(kGelu * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kGelu * (1 + 3 * 0.044715f * x * x);
}

/* ---- calls of Terrace ------------------------------------------------------------------------ */

/* Returns the parameter after the last step's update. */
static Tensor* parameter(Trainer* t, int i) {
  done(terrace_wait_parameter(t->session, i));
  return &t->tensors[i];
}

static void give_gradient(Trainer* t, int i) {
  Tensor* tensor = &t->tensors[i];
  const terrace_buffer buffer = {tensor->gradient, tensor->count, TERRACE_DTYPE_FP32,
                                 TERRACE_DEVICE_CPU, 0, 0, NULL};
  done(terrace_gradient_add(t->session, i, &buffer));
  memset(tensor->gradient, 0, sizeof(float) * (size_t)tensor->count);
}

static void open_session(Trainer* t, const char* drive) {
  terrace_nvme_directory directory = {drive, 0};
  terrace_session_options options = {sizeof options};
  options.state_tier = drive ? TERRACE_TIER_NVME : TERRACE_TIER_HOST;
  options.nvme = &directory;
  options.nvme_count = drive ? 1 : 0;
  done(terrace_session_create(&options, &t->session));

  const terrace_hyperparameter beta2 = {"adam_beta2", 0.99};
  int32_t decays, plain, number;
  terrace_group_options group = {sizeof group, 1, "adamw", &beta2, 0.1};
  done(terrace_group_add(t->session, &group, &decays));
  group.weight_decay = 0;
  done(terrace_group_add(t->session, &group, &plain));
  for (int i = 0; i < TENSORS; i++) {
    const Tensor* tensor = &t->tensors[i];
    terrace_tensor_options one = {sizeof one};
    one.name = tensor->name;
    one.parameter.data = tensor->value;
    one.parameter.element_count = tensor->count;
    one.parameter.dtype = TERRACE_DTYPE_FP32;
    one.parameter.device_type = TERRACE_DEVICE_CPU;
    one.shape = tensor->shape;
    one.dimension_count = tensor->dimensions;
    done(terrace_tensor_add(t->session, tensor->dimensions == 2 ? decays : plain, &one, &number));
  }
  done(terrace_session_prepare(t->session));
}

static void end_step(Trainer* t) {
  if (!t->is_stepping) return;
  done(terrace_step_end(t->session, NULL));
  t->is_stepping = 0;
}

static void begin_step(Trainer* t) {
  const double rates[] = {3e-3, 3e-3};
  terrace_step_options options = {sizeof options};
  options.learning_rates = rates;
  options.learning_rate_count = 2;
  options.max_grad_norm = 1;
  done(terrace_step_begin(t->session, &options));
  t->is_stepping = 1;
}

/* ---- the model ------------------------------------------------------------------------------- */

static void forward_layer(Trainer* t, int l) {
  Layer* a = &t->layers[l];
  Tensor* p[OF_LAYER];
  static float y[N * C];
  for (int i = 0; i < OF_LAYER; i++) p[i] = parameter(t, FIRST_LAYER + l * OF_LAYER + i);
  memcpy(a->in, t->x, sizeof t->x);
  norm(a->ln1, a->in, p[LN1W], p[LN1B], a->mean[0], a->scale[0]);
  linear(a->qkv, a->ln1, p[QKVW], p[QKVB], C);
  attention(a->mixed, a->qkv, a->attention);
  linear(y, a->mixed, p[PROJW], p[PROJB], C);
  for (int i = 0; i < N * C; i++) a->mid[i] = a->in[i] + y[i];
  norm(a->ln2, a->mid, p[LN2W], p[LN2B], a->mean[1], a->scale[1]);
  linear(a->fc, a->ln2, p[FCW], p[FCB], C);
  for (int i = 0; i < N * 4 * C; i++) a->gelu[i] = gelu(a->fc[i]);
  linear(y, a->gelu, p[OUTW], p[OUTB], 4 * C);
  for (int i = 0; i < N * C; i++) t->x[i] = a->mid[i] + y[i];
}

/* Replaces the gradient of the layer's output in dx by the gradient of its input. */
static void backward_layer(Trainer* t, int l, float* dx) {
  Layer* a = &t->layers[l];
  Tensor* p = &t->tensors[FIRST_LAYER + l * OF_LAYER];
  static float d_fc[N * 4 * C], d_ln[N * C], d_mixed[N * C], d_qkv[N * 3 * C];
  linear_backward(d_fc, dx, a->gelu, &p[OUTW], &p[OUTB]);
  for (int i = 0; i < N * 4 * C; i++) d_fc[i] *= gelu_slope(a->fc[i]);
  linear_backward(d_ln, d_fc, a->ln2, &p[FCW], &p[FCB]);
  norm_backward(dx, d_ln, a->mid, &p[LN2W], &p[LN2B], a->mean[1], a->scale[1]);
  linear_backward(d_mixed, dx, a->mixed, &p[PROJW], &p[PROJB]);
  attention_backward(d_qkv, d_mixed, a->qkv, a->attention);
  linear_backward(d_ln, d_qkv, a->ln1, &p[QKVW], &p[QKVB]);
  norm_backward(dx, d_ln, a->in, &p[LN1W], &p[LN1B], a->mean[0], a->scale[0]);
  for (int i = 0; i < OF_LAYER; i++) give_gradient(t, FIRST_LAYER + l * OF_LAYER + i);
}

/* Returns the mean loss. Turns the probabilities into the gradients of the logits. */
static float forward(Trainer* t, const unsigned char* tokens) {
  const Tensor *wte = parameter(t, WTE), *wpe = parameter(t, WPE);
  for (int i = 0; i < N * C; i++) {
    const int n = i / C, token = tokens[n / T * (T + 1) + n % T];
    t->x[i] = wte->value[token * C + i % C] + wpe->value[n % T * C + i % C];
  }
  for (int l = 0; l < L; l++) forward_layer(t, l);
  norm(t->lnf, t->x, parameter(t, LNFW), parameter(t, LNFB), t->mean, t->scale);
  linear(t->probabilities, t->lnf, wte, NULL, C);
  float loss = 0;
  for (int n = 0; n < N; n++) {
    float *row = t->probabilities + n * V, most = -1e30f, total = 0;
    const int target = tokens[n / T * (T + 1) + n % T + 1];
    for (int v = 0; v < V; v++) most = fmaxf(most, row[v]);
    for (int v = 0; v < V; v++) total += row[v] = expf(row[v] - most);
    loss -= logf(row[target] / total) / N;
    for (int v = 0; v < V; v++) row[v] = (row[v] / total - (v == target)) / N;
  }
  return loss;
}

static void backward(Trainer* t, const unsigned char* tokens) {
  static float dx[N * C], d_ln[N * C];
  Tensor* p = t->tensors;
  memset(dx, 0, sizeof dx);
  linear_backward(d_ln, t->probabilities, t->lnf, &p[WTE], NULL);
  norm_backward(dx, d_ln, t->x, &p[LNFW], &p[LNFB], t->mean, t->scale);
  give_gradient(t, LNFW);
  give_gradient(t, LNFB);
  for (int l = L - 1; l >= 0; l--) backward_layer(t, l, dx);
  for (int i = 0; i < N * C; i++) {
    const int n = i / C;
    p[WTE].gradient[tokens[n / T * (T + 1) + n % T] * C + i % C] += dx[i];
    p[WPE].gradient[n % T * C + i % C] += dx[i];
  }
  give_gradient(t, WTE);
  give_gradient(t, WPE);
}

static void add_tensor(Tensor* tensor, const char* name, int rows, int columns) {
  static unsigned state;
  if (!strcmp(name, "wte.weight")) state = 1234;
  snprintf(tensor->name, sizeof tensor->name, "%s", name);
  tensor->dimensions = columns ? 2 : 1;
  tensor->shape[0] = rows, tensor->shape[1] = columns;
  tensor->count = (int64_t)rows * (columns ? columns : 1);
  tensor->value = calloc((size_t)tensor->count, sizeof(float));
  tensor->gradient = calloc((size_t)tensor->count, sizeof(float));
  if (!tensor->value || !tensor->gradient) exit(1);
  for (int64_t i = 0; i < tensor->count; i++) {
    state = state * 1664525u + 1013904223u;
    const float drawn = ((float)(state >> 8) / 8388608.0f - 1) * 0.04f;
    tensor->value[i] = columns ? drawn : (strstr(name, "ln_") && strstr(name, "weight")) ? 1 : 0;
  }
}

static Trainer* make_trainer(void) {
  static const int kRows[OF_LAYER] = {C, C, 3 * C, 3 * C, C, C, C, C, 4 * C, 4 * C, C, C};
  static const int kColumns[OF_LAYER] = {0, 0, C, 0, C, 0, 0, 0, C, 0, 4 * C, 0};
  Trainer* t = calloc(1, sizeof *t);
  if (!t) exit(1);
  add_tensor(&t->tensors[WTE], "wte.weight", V, C);
  add_tensor(&t->tensors[WPE], "wpe.weight", T, C);
  add_tensor(&t->tensors[LNFW], "ln_f.weight", C, 0);
  add_tensor(&t->tensors[LNFB], "ln_f.bias", C, 0);
  for (int i = 0; i < OF_LAYER * L; i++) {
    char name[40];
    snprintf(name, sizeof name, "h.%d.%s", i / OF_LAYER, kLayerNames[i % OF_LAYER]);
    add_tensor(&t->tensors[FIRST_LAYER + i], name, kRows[i % OF_LAYER], kColumns[i % OF_LAYER]);
  }
  return t;
}

/* Trains a model. With a drive the state is there, and the training stops and resumes halfway. */
static Trainer* train(const unsigned char* text, size_t size, const char* drive) {
  Trainer* t = make_trainer();
  char saved[4096];
  snprintf(saved, sizeof saved, "%s/state", drive ? drive : "");
  open_session(t, drive);
  float first = 0, last = 0;
  for (int step = 1; step <= STEPS; step++) {
    if (drive && step == STEPS / 2) {
      end_step(t);
      done(terrace_save(t->session, saved));
      done(terrace_session_destroy(t->session));
      open_session(t, drive);
      done(terrace_load(t->session, saved));
    }
    unsigned char tokens[B * (T + 1)];
    for (int b = 0; b < B; b++) {
      const size_t at = (size_t)(step * B + b) * 7919 % (size - T);
      memcpy(tokens + b * (T + 1), text + at, T + 1);
    }
    last = forward(t, tokens); /* waits for the last step's updates, tensor by tensor */
    end_step(t);
    backward(t, tokens);
    begin_step(t);
    if (step == 1) first = last;
    if (step == 1 || step % 10 == 0) printf("step %d  loss %.4f\n", step, last);
  }
  end_step(t);
  done(terrace_session_destroy(t->session));
  if (!(last < first - 1)) {
    fprintf(stderr, "c_trainer: it has learned nothing\n");
    exit(1);
  }
  return t;
}

int main(int count, char** arguments) {
  static unsigned char text[1 << 16];
  FILE* file = count == 3 ? fopen(arguments[1], "rb") : NULL;
  if (!file) return fprintf(stderr, "usage: c_trainer TEXT DIRECTORY\n"), 2;
  const size_t size = fread(text, 1, sizeof text, file);
  fclose(file);
  if (size < 2 * T) return fprintf(stderr, "c_trainer: %s is too short\n", arguments[1]), 1;
  const Trainer* on_drive = train(text, size, arguments[2]);
  const Trainer* in_memory = train(text, size, NULL);
  for (int i = 0; i < TENSORS; i++) {
    const Tensor *a = &on_drive->tensors[i], *b = &in_memory->tensors[i];
    if (!memcmp(a->value, b->value, sizeof(float) * (size_t)a->count)) continue;
    return fprintf(stderr, "c_trainer: %s has other bits\n", a->name), 1;
  }
  printf("the same parameters, bit by bit\n");
  return 0;
}
