// RUN: pcp-opt %s --pcp-expand-training='optimizer=muon{lr=0.02,ns_steps=2} algorithm=none' | filecheck %s
// RUN: pcp-opt %s --pcp-expand-training='optimizer=lion algorithm=none' | filecheck %s --check-prefix=LION
// RUN: pcp-opt %s --pcp-expand-training='optimizer=adafactor algorithm=none' | filecheck %s --check-prefix=FACTOR
// RUN: pcp-opt %s --pcp-expand-training='optimizer=adamw;*emb*={weight_decay=0};h=sgd{lr=0.5} algorithm=none' | filecheck %s --check-prefix=GROUPS
// RUN: not pcp-opt %s --pcp-expand-training='optimizer=adamw;bias={lr=1} algorithm=none' 2>&1 | filecheck %s --check-prefix=IDLE

// The hidden matrix keeps one momentum and is multiplied; the embedding gets AdamW.
// CHECK: pcp.optimizer = "muon{ns_steps=2}"
// CHECK: func.func @init{{.*}} -> (tensor<8x4xf32> {pcp.init = "zeros", pcp.name = "h", pcp.role = "param"}, tensor<6x4xf32> {pcp.init = "zeros", pcp.name = "emb", pcp.role = "param"}, tensor<8x4xf32> {pcp.init = "zeros", pcp.name = "momentum.h", pcp.role = "state"}, tensor<6x4xf32> {pcp.init = "zeros", pcp.name = "m.emb", pcp.role = "state"}, tensor<6x4xf32> {pcp.init = "zeros", pcp.name = "v.emb", pcp.role = "state"}, tensor<i32> {pcp.init = "zeros", pcp.name = "step", pcp.role = "state"})
// CHECK: func.func @apply
// CHECK: stablehlo.transpose %{{.*}}, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
// CHECK: stablehlo.dot_general {{.*}} contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK: stablehlo.dot_general {{.*}} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK: stablehlo.dot_general {{.*}} : (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK: stablehlo.dot_general {{.*}} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
// CHECK: stablehlo.dot_general
// CHECK: stablehlo.dot_general
// CHECK-NOT: stablehlo.dot_general
// CHECK: func.func @eval

// LION: pcp.name = "m.h", pcp.role = "state"
// LION: func.func @apply
// LION: stablehlo.sign
// LION: stablehlo.sign

// FACTOR: tensor<8xf32> {pcp.init = "zeros", pcp.name = "row.h", pcp.role = "state"}, tensor<6xf32> {pcp.init = "zeros", pcp.name = "row.emb", pcp.role = "state"}, tensor<4xf32> {pcp.init = "zeros", pcp.name = "col.h", pcp.role = "state"}, tensor<4xf32> {pcp.init = "zeros", pcp.name = "col.emb", pcp.role = "state"}
// FACTOR: func.func @apply
// FACTOR: stablehlo.power

// GROUPS: pcp.optimizer = "adamw;*emb*={weight_decay=0};h=sgd{lr=0.5}"
// GROUPS: func.func @init{{.*}} "emb", pcp.role = "param"}, tensor<6x4xf32> {pcp.init = "zeros", pcp.name = "m.emb", pcp.role = "state"}, tensor<6x4xf32> {pcp.init = "zeros", pcp.name = "v.emb", pcp.role = "state"}, tensor<i32>

// IDLE: the optimizer's pattern 'bias' matches no parameter (h, emb)
func.func @main(%h: tensor<8x4xf32> {pcp.init = "zeros", pcp.name = "h", pcp.role = "param"}, %emb: tensor<6x4xf32> {pcp.init = "zeros", pcp.name = "emb", pcp.role = "param"}, %x: tensor<8x4xf32> {pcp.name = "x", pcp.role = "data"}, %y: tensor<6x4xf32> {pcp.name = "y", pcp.role = "data"}) -> tensor<f32> {
  %0 = stablehlo.dot_general %h, %x, contracting_dims = [0, 1] x [0, 1] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<f32>
  %1 = stablehlo.dot_general %emb, %y, contracting_dims = [0, 1] x [0, 1] : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<f32>
  %2 = stablehlo.add %0, %1 : tensor<f32>
  return %2 : tensor<f32>
}
func.func @grad(%h: tensor<8x4xf32>, %emb: tensor<6x4xf32>, %x: tensor<8x4xf32>, %y: tensor<6x4xf32>) -> (tensor<f32>, tensor<8x4xf32>, tensor<6x4xf32>) {
  %0 = stablehlo.dot_general %h, %x, contracting_dims = [0, 1] x [0, 1] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<f32>
  return %0, %x, %y : tensor<f32>, tensor<8x4xf32>, tensor<6x4xf32>
}
