#include "runtime/config/foreign_flags.h"

#include <array>

namespace terrace {
namespace {

constexpr std::string_view kSameNumber = "the same number";
constexpr std::string_view kSameSteps = "the same number of steps";
constexpr std::string_view kMicroBatch =
    "samples of a micro-batch on one data-parallel rank; a step has --gradient-accumulation-steps "
    "of them on every rank";
constexpr std::string_view kGlobalBatch =
    "the global batch divided by --micro-batch-size and by the data-parallel ranks";
constexpr std::string_view kRatio = "a number of steps: the ratio times --max-steps";
constexpr std::string_view kModel =
    "a directory with config.json and its weights, or a preset; nothing is downloaded";
constexpr std::string_view kData = "files or directories of text or tokens; nothing is downloaded";
constexpr std::string_view kRecompute =
    "--recompute full repeats every forward; auto does it where memory is short";
constexpr std::string_view kPrecision = "bf16 (the default), fp32, or fp16 on GPUs";
constexpr std::string_view kRunDir = "metrics, checkpoints and final/ go there";
constexpr std::string_view kResume = "the path of a checkpoint-N, or auto for the last one";
constexpr std::string_view kZero =
    "0 to 3 as in DeepSpeed; FSDP's SHARD_GRAD_OP is 2, its FULL_SHARD is 3";
constexpr std::string_view kSizes =
    "the sizes of a model come from --model: a directory with a config.json, or a preset";
constexpr std::string_view kOffload = "host, or nvme with --nvme DIR";
constexpr std::string_view kTokenizer =
    "auto, bytes or the path of a tokenizer, for JSON lines; terrace tokenize makes token files of "
    "text";
constexpr std::string_view kAlwaysCompiled = "leave it out: the step is always compiled";
constexpr std::string_view kMetrics = "leave it out: the run directory has metrics.jsonl";
constexpr std::string_view kRanks = "or start ranks as processes with mpirun -n N";

constexpr auto kForeignFlags = std::to_array<ForeignFlag>({
    // Batch and length.
    {"batch-size", "micro-batch-size", kMicroBatch},
    {"per-device-train-batch-size", "micro-batch-size", kMicroBatch},
    {"per-gpu-train-batch-size", "micro-batch-size", kMicroBatch},
    {"train-micro-batch-size-per-gpu", "micro-batch-size", kMicroBatch},
    {"local-batch-size", "micro-batch-size", kMicroBatch},
    {"per-device-eval-batch-size", "micro-batch-size", "an evaluation uses it too"},
    {"eval-batch-size", "micro-batch-size", "an evaluation uses it too"},
    {"global-batch-size", "gradient-accumulation-steps", kGlobalBatch},
    {"train-batch-size", "gradient-accumulation-steps", kGlobalBatch},
    {"total-batch-size", "gradient-accumulation-steps", kGlobalBatch},
    {"gradient-accumulation", "gradient-accumulation-steps", kSameNumber},
    {"grad-accum-steps", "gradient-accumulation-steps", kSameNumber},
    {"accumulation-steps", "gradient-accumulation-steps", kSameNumber},
    {"accumulate-grad-batches", "gradient-accumulation-steps", kSameNumber},
    {"seq-length", "sequence-length", "the same number of tokens"},
    {"seq-len", "sequence-length", "the same number of tokens"},
    {"max-seq-length", "sequence-length", "the same number of tokens"},
    {"max-seq-len", "sequence-length", "the same number of tokens"},
    {"max-length", "sequence-length", "the same number of tokens"},
    {"model-max-length", "sequence-length", "the same number of tokens"},
    {"block-size", "sequence-length", "the same number of tokens"},
    {"context-length", "sequence-length", "the same number of tokens"},
    {"cutoff-len", "sequence-length", "the same number of tokens"},
    // How long.
    {"train-iters", "max-steps", kSameSteps},
    {"max-iters", "max-steps", kSameSteps},
    {"num-iterations", "max-steps", kSameSteps},
    {"max-train-steps", "max-steps", kSameSteps},
    {"num-train-steps", "max-steps", kSameSteps},
    {"total-steps", "max-steps", kSameSteps},
    {"num-steps", "max-steps", kSameSteps},
    {"steps", "max-steps", kSameSteps},
    {"train-samples", "max-steps", "the samples divided by the global batch"},
    {"num-epochs", "num-train-epochs", kSameNumber},
    {"epochs", "num-train-epochs", kSameNumber},
    {"max-epochs", "num-train-epochs", kSameNumber},
    {"exit-interval", "stop-after-step", kSameSteps},
    // Optimizer.
    {"lr", "learning-rate", kSameNumber},
    {"min-lr", "min-learning-rate", kSameNumber},
    {"warmup-ratio", "warmup-steps", kRatio},
    {"lr-warmup-fraction", "warmup-steps", kRatio},
    {"lr-warmup-iters", "warmup-steps", kSameSteps},
    {"lr-warmup-steps", "warmup-steps", kSameSteps},
    {"warmup-iters", "warmup-steps", kSameSteps},
    {"num-warmup-steps", "warmup-steps", kSameSteps},
    {"warmup", "warmup-steps", "a number of steps"},
    {"lr-scheduler", "lr-scheduler-type", "cosine, linear or constant"},
    {"lr-decay-style", "lr-scheduler-type", "cosine, linear or constant"},
    {"lr-decay-iters", "max-steps", "the schedule ends where the run does"},
    {"scheduler", "lr-scheduler-type", "cosine, linear or constant"},
    {"optim", "optimizer", "adamw_torch is adamw"},
    {"optimizer-name", "optimizer", "AdamW is adamw"},
    {"wd", "weight-decay", kSameNumber},
    {"beta1", "adam-beta1", kSameNumber},
    {"beta2", "adam-beta2", kSameNumber},
    {"eps", "adam-epsilon", kSameNumber},
    {"adam-eps", "adam-epsilon", kSameNumber},
    {"clip-grad", "max-grad-norm", kSameNumber},
    {"clip-grad-norm", "max-grad-norm", kSameNumber},
    {"grad-clip", "max-grad-norm", kSameNumber},
    {"gradient-clipping", "max-grad-norm", kSameNumber},
    {"gradient-clip-val", "max-grad-norm", kSameNumber},
    {"max-norm", "max-grad-norm", kSameNumber},
    // Precision.
    {"bf16", "precision", "bf16 is the default"},
    {"fp16", "precision", "--precision fp16, on GPUs only"},
    {"fp32", "precision", "--precision fp32"},
    {"tf32", "", "leave it out: --precision says the type, and sums are fp32"},
    {"dtype", "precision", kPrecision},
    {"torch-dtype", "precision", kPrecision},
    {"params-dtype", "precision", kPrecision},
    {"mixed-precision", "precision", kPrecision},
    {"mixed-precision-param", "precision", kPrecision},
    // Model and data.
    {"model-name-or-path", "model", kModel},
    {"pretrained-model-name-or-path", "model", kModel},
    {"model-name", "model", kModel},
    {"model-path", "model", kModel},
    {"model-id", "model", kModel},
    {"model-flavor", "model", kModel},
    {"hf-assets-path", "model", kModel},
    {"num-layers", "model", kSizes},
    {"hidden-size", "model", kSizes},
    {"num-attention-heads", "model", kSizes},
    {"num-query-groups", "model", kSizes},
    {"ffn-hidden-size", "model", kSizes},
    {"max-position-embeddings", "model", kSizes},
    {"vocab-size", "model", kSizes},
    {"dataset", "data", kData},
    {"dataset-name", "data", kData},
    {"dataset-path", "data", kData},
    {"data-path", "data", kData},
    {"train-data", "data", kData},
    {"train-data-path", "data", kData},
    {"train-file", "data", kData},
    {"eval-file", "validation-data", kData},
    {"eval-dataset", "validation-data", kData},
    {"validation-file", "validation-data", kData},
    {"valid-data-path", "validation-data", kData},
    {"split", "validation-fraction", "the part of the data's tail that is kept for evaluation"},
    {"validation-split-percentage", "validation-fraction", "a fraction: the percentage / 100"},
    {"tokenizer-name", "tokenizer", kTokenizer},
    {"tokenizer-name-or-path", "tokenizer", kTokenizer},
    {"tokenizer-type", "tokenizer", kTokenizer},
    {"tokenizer-model", "tokenizer", kTokenizer},
    {"tokenizer-path", "tokenizer", kTokenizer},
    {"vocab-file", "tokenizer", kTokenizer},
    {"random-seed", "seed", kSameNumber},
    {"data-seed", "seed", "one seed says initial parameters and the order of samples"},
    {"debug-seed", "seed", kSameNumber},
    // Memory.
    {"gradient-checkpointing", "recompute", kRecompute},
    {"recompute-activations", "recompute", kRecompute},
    {"recompute-granularity", "recompute", kRecompute},
    {"recompute-method", "recompute", kRecompute},
    {"recompute-num-layers", "recompute", kRecompute},
    {"checkpoint-activations", "recompute", kRecompute},
    {"cpu-offload", "place-optimizer", kOffload},
    {"enable-cpu-offload", "place-optimizer", kOffload},
    {"offload-optimizer", "place-optimizer", kOffload},
    {"offload-optimizer-device", "place-optimizer", kOffload},
    {"optimizer-cpu-offload", "place-optimizer", kOffload},
    {"offload-param", "place-parameters", kOffload},
    {"offload-param-device", "place-parameters", kOffload},
    {"offload-params", "place-parameters", kOffload},
    {"nvme-path", "nvme", "DIR, or DIR:SIZE"},
    // Ranks.
    {"deepspeed", "zero-stage",
     "its stage; offload_optimizer is --place-optimizer, offload_param --place-parameters, "
     "nvme_path --nvme"},
    {"deepspeed-config", "zero-stage",
     "its stage; offload_optimizer is --place-optimizer, offload_param --place-parameters, "
     "nvme_path --nvme"},
    {"zero", "zero-stage", kZero},
    {"zero-optimization", "zero-stage", kZero},
    {"fsdp", "zero-stage", kZero},
    {"sharding-strategy", "zero-stage", kZero},
    {"data-parallel-sharding-strategy", "zero-stage", kZero},
    {"use-distributed-optimizer", "zero-stage", "--zero-stage 1, the default of several ranks"},
    {"data-parallel-shard-degree", "zero-stage",
     "3 shares all state among the data-parallel ranks, which are the ranks that tensor and "
     "pipeline parallelism leave"},
    {"data-parallel-replicate-degree", "",
     "leave it out: data-parallel ranks are those that tensor and pipeline parallelism leave"},
    {"data-parallel-size", "",
     "leave it out: data-parallel ranks are those that tensor and pipeline parallelism leave"},
    {"tensor-model-parallel-size", "tensor-parallel", kSameNumber},
    {"tensor-parallel-size", "tensor-parallel", kSameNumber},
    {"tensor-parallel-degree", "tensor-parallel", kSameNumber},
    {"tp", "tensor-parallel", kSameNumber},
    {"tp-size", "tensor-parallel", kSameNumber},
    {"pipeline-model-parallel-size", "pipeline-parallel", kSameNumber},
    {"pipeline-parallel-size", "pipeline-parallel", kSameNumber},
    {"pipeline-parallel-degree", "pipeline-parallel", kSameNumber},
    {"pipeline-parallel-schedule", "pipeline-schedule",
     "1F1B is 1f1b, Interleaved1F1B interleaved"},
    {"pp", "pipeline-parallel", kSameNumber},
    {"pp-size", "pipeline-parallel", kSameNumber},
    {"virtual-pipeline-model-parallel-size", "virtual-stages", kSameNumber},
    {"num-layers-per-virtual-pipeline-stage", "virtual-stages",
     "pieces of the model on a rank: the layers of a rank divided by those of a piece"},
    {"context-parallel-size", "", "leave it out: no context parallelism is built"},
    {"context-parallel-degree", "", "leave it out: no context parallelism is built"},
    {"expert-model-parallel-size", "", "leave it out: no mixture of experts is built"},
    {"expert-parallel-degree", "", "leave it out: no mixture of experts is built"},
    {"nproc-per-node", "local-ranks", kRanks},
    {"num-gpus", "local-ranks", kRanks},
    {"num-processes", "local-ranks", kRanks},
    {"world-size", "local-ranks", kRanks},
    {"distributed-timeout-minutes", "collective-timeout", "seconds: the minutes times 60"},
    {"ddp-timeout", "collective-timeout", "the same number of seconds"},
    // The run.
    {"output-dir", "run-dir", kRunDir},
    {"out-dir", "run-dir", kRunDir},
    {"dump-folder", "run-dir", kRunDir},
    {"logging-dir", "run-dir", kRunDir},
    {"tensorboard-dir", "run-dir", kRunDir},
    {"save", "run-dir", kRunDir},
    {"save-dir", "run-dir", kRunDir},
    {"checkpoint-dir", "run-dir", kRunDir},
    {"checkpoint-folder", "run-dir", kRunDir},
    {"overwrite-output-dir", "run-dir", "name a directory that is not there yet"},
    {"load", "resume", kResume},
    {"resume-from-checkpoint", "resume", kResume},
    {"resume-from", "resume", kResume},
    {"eval-steps", "eval-every", kSameSteps},
    {"eval-interval", "eval-every", kSameSteps},
    {"eval-freq", "eval-every", kSameSteps},
    {"validation-freq", "eval-every", kSameSteps},
    {"val-check-interval", "eval-every", "a number of steps"},
    {"eval-strategy", "eval-every",
     "a number of steps; without it a run evaluates after its last step"},
    {"evaluation-strategy", "eval-every",
     "a number of steps; without it a run evaluates after its last step"},
    {"eval-iters", "eval-samples", "samples: the iterations times the global batch"},
    {"max-eval-samples", "eval-samples", kSameNumber},
    {"do-eval", "eval-every", "a number of steps; the last step is always followed by one"},
    {"do-train", "", "leave it out: terrace train trains"},
    {"save-steps", "checkpoint-every", kSameSteps},
    {"save-interval", "checkpoint-every", kSameSteps},
    {"save-freq", "checkpoint-every", kSameSteps},
    {"save-strategy", "checkpoint-every", "a number of steps"},
    {"checkpoint-interval", "checkpoint-every", kSameSteps},
    {"checkpointing-steps", "checkpoint-every", kSameSteps},
    {"save-total-limit", "keep-last", "the same number of checkpoints"},
    {"keep-latest-k", "keep-last", "the same number of checkpoints"},
    {"logging-steps", "log-every", kSameSteps},
    {"log-interval", "log-every", kSameSteps},
    {"log-freq", "log-every", kSameSteps},
    {"log-steps", "log-every", kSameSteps},
    {"disable-tqdm", "progress", "--progress off"},
    {"report-to", "", kMetrics},
    {"wandb-project", "", kMetrics},
    {"enable-wandb", "", kMetrics},
    {"enable-tensorboard", "", kMetrics},
    {"job-config-file", "config", "a TOML file with the flags of terrace train as keys"},
    {"config-file", "config", "a TOML file with the flags of terrace train as keys"},
    {"profile-step-start", "trace-steps", "FIRST:LAST"},
    {"device-map", "device", "auto, cpu or cuda"},
    {"use-cpu", "device", "--device cpu"},
    {"no-cuda", "device", "--device cpu"},
    {"compile", "", kAlwaysCompiled},
    {"torch-compile", "", kAlwaysCompiled},
    {"compile-enable", "", kAlwaysCompiled},
    {"use-flash-attn", "", "leave it out: attention never stores its squares"},
    {"attn-implementation", "", "leave it out: attention never stores its squares"},
    {"dataloader-num-workers", "", "leave it out: data is read beside the step"},
    {"num-workers", "", "leave it out: data is read beside the step"},
});

}  // namespace

std::span<const ForeignFlag> foreign_flags() { return kForeignFlags; }

}  // namespace terrace
