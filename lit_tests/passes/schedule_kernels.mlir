// RUN: pcp-opt %s --pcp-schedule-kernels=vector=512 --allow-unregistered-dialect | filecheck %s
// RUN: pcp-opt %s --pcp-schedule-kernels=vector=256 --allow-unregistered-dialect | filecheck %s --check-prefix=HALF
// RUN: pcp-opt %s --pcp-schedule-kernels='vector=512 tuned="NT:0x2048x256x768=32x128:4x64x8;TN:8x128x32x64=iree"' --allow-unregistered-dialect | filecheck %s --check-prefix=TUNED
// RUN: pcp-opt %s --pcp-schedule-kernels=vector=64 | filecheck %s --check-prefix=NONE

// NONE-NOT: linalg

// A linear layer: its weights are turned by a kernel of its own.
// CHECK-LABEL: @linear
// CHECK: %[[H:.*]] = "flow.dispatch.region"()
// CHECK: linalg.transpose ins(%arg1 : tensor<768x256xf32>) outs({{.*}} : tensor<256x768xf32>) permutation = [1, 0]
// CHECK: "flow.return"
// CHECK: linalg.fill
// CHECK: linalg.matmul {compilation_info = #iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<distribution = [64, 64, 0], vector_common_parallel = [8, 32, 0], vector_reduction = [0, 0, 4]>, translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>}
// CHECK-SAME: ins(%arg0, %[[H]]
// With fewer registers they are put into panels of 16 columns.
// HALF-LABEL: @linear
// HALF: %[[S:.*]] = stablehlo.reshape %arg1 : (tensor<768x256xf32>) -> tensor<48x16x256xf32>
// HALF: linalg.transpose ins(%[[S]] : tensor<48x16x256xf32>) outs({{.*}} : tensor<48x256x16xf32>) permutation = [0, 2, 1]
// HALF: linalg.generic
// HALF-SAME: distribution = [128, 4, 0, 0], vector_common_parallel = [4, 1, 16, 0], vector_reduction = [0, 0, 0, 4]
// HALF: stablehlo.reshape {{.*}} : (tensor<2048x48x16xf32>) -> tensor<2048x768xf32>
// What was measured holds before the table: not turned, other tiles.
// TUNED-LABEL: @linear
// TUNED-NOT: linalg.transpose
// TUNED: distribution = [32, 128, 0], vector_common_parallel = [4, 64, 0], vector_reduction = [0, 0, 8]
// TUNED-SAME: ins(%arg0, %arg1 : tensor<2048x256xf32>, tensor<768x256xf32>)
func.func @linear(%x: tensor<2048x256xf32>, %w: tensor<768x256xf32>) -> tensor<2048x768xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<2048x256xf32>, tensor<768x256xf32>) -> tensor<2048x768xf32>
  return %0 : tensor<2048x768xf32>
}

// Heads, two batch dims: one, and back. The left operand is read as it lies.
// CHECK-LABEL: @heads
// CHECK: %[[L:.*]] = stablehlo.reshape %arg0 : (tensor<2x4x128x32xf32>) -> tensor<8x128x32xf32>
// CHECK: linalg.batch_matmul
// CHECK-SAME: vector_common_parallel = [1, 8, 32, 0], vector_reduction = [0, 0, 0, 4]
// CHECK: stablehlo.reshape {{.*}} : (tensor<8x32x64xf32>) -> tensor<2x4x32x64xf32>
// HALF-LABEL: @heads
// HALF: vector_common_parallel = [1, 4, 16, 0]
func.func @heads(%p: tensor<2x4x128x32xf32>, %v: tensor<2x4x128x64xf32>) -> tensor<2x4x32x64xf32> {
  %0 = stablehlo.dot_general %p, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2] : (tensor<2x4x128x32xf32>, tensor<2x4x128x64xf32>) -> tensor<2x4x32x64xf32>
  return %0 : tensor<2x4x32x64xf32>
}

// No tile divides 65 columns: IREE's own.
// CHECK-LABEL: @odd
// CHECK-NEXT: stablehlo.dot_general
func.func @odd(%x: tensor<64x32xf32>, %w: tensor<32x65xf32>) -> tensor<64x65xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x65xf32>) -> tensor<64x65xf32>
  return %0 : tensor<64x65xf32>
}
