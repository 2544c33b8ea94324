// RUN: pcp-opt %s --pcp-precision="compute=f16 growth-interval=5" --pcp-grad="func=main name=grad seed=true" --pcp-expand-training="optimizer=sgd{lr=0.1} algorithm=none ema=0.5" --cse --canonicalize | filecheck %s
// RUN: pcp-opt %s --pcp-precision="params=bf16 rounding=stochastic" --pcp-grad="func=main name=grad" --pcp-expand-training="optimizer=sgd{lr=0.1} algorithm=none" | filecheck %s --check-prefix=RANDOM
// RUN: not pcp-opt %s --pcp-precision="compute=f16" --pcp-grad="func=main name=grad" --pcp-expand-training 2>&1 | filecheck %s --check-prefix=SEED
// RUN: not pcp-opt %s --pcp-precision="params=bf16 rounding=stochastic" --pcp-grad="func=main name=grad" --pcp-expand-training 2>&1 | filecheck %s --check-prefix=DILOCO
// RUN: not pcp-opt %s --pcp-grad="func= seed=true" 2>&1 | filecheck %s --check-prefix=ALONE

// The scale comes as state, and gradients are divided by it; a step with an infinite
// one leaves parameter, average and step as they were.

// CHECK-LABEL: func.func @grad(
// CHECK-SAME: %arg2: tensor<f32> {pcp.name = "loss_scale", pcp.role = "state"}
// CHECK: %[[INVERSE:.*]] = stablehlo.divide %{{.*}}, %arg2 : tensor<f32>
// CHECK: stablehlo.multiply {{.*}} : tensor<4x4xf32>
// CHECK-LABEL: func.func @apply(
// CHECK-SAME: "ema.w", pcp.role = "model_state"
// CHECK-SAME: "loss_scale"
// CHECK-SAME: "finite_steps"
// CHECK-SAME: "step"
// CHECK: stablehlo.is_finite %arg1
// CHECK: %[[FINITE:.*]] = stablehlo.compare EQ
// CHECK-COUNT-3: stablehlo.select %[[FINITE]], {{.*}}, %arg

// RANDOM-LABEL: func.func @grad(
// RANDOM-SAME: tensor<4x4xbf16> {pcp.name = "w", pcp.role = "param"}
// RANDOM-SAME: tensor<4x4xf32> {pcp.name = "w", pcp.role = "grad"}
// RANDOM-LABEL: func.func @apply(
// RANDOM: stablehlo.bitcast_convert {{.*}} : (tensor<4x4xf32>) -> tensor<4x4xi32>
// RANDOM: stablehlo.convert {{.*}} : (tensor<4x4xf32>) -> tensor<4x4xbf16>

// SEED: @grad is {{.*}}; training needs {{.*}}: what the model returns, and one gradient a parameter
// DILOCO: algorithm diloco updates parameters by itself, and params=bf16 would lose small updates
// ALONE: pcp-grad: wrt=, name= and seed= are for the function that func= names

func.func @main(
    %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param", pcp.init = "ones"},
    %x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}
