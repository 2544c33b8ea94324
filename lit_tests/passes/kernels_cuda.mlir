// RUN: pcp-opt %s --pcp-kernels=set=sm_80 --allow-unregistered-dialect | filecheck %s

// One executable for each kernel, with its PTX by name and its shared memory.
// CHECK: "hal.executable.source"() <{objects = #hal.executable.objects<{#hal.executable.target<"cuda", "cuda-nvptx-fb"> = [#hal.executable.object<{path = "pcp-{{[0-9a-f]+}}-pcp_product_f32_128_NT.ptx"}>]}>
// CHECK: constants = 8
// CHECK: workgroup_local_memory = 98304 : index, workgroup_size = [256 : index, 1 : index, 1 : index]
// CHECK: pcp_product_f32_64_TN_ptx
// CHECK: workgroup_local_memory = 34816 : index, workgroup_size = [128 : index, 1 : index, 1 : index]

// Large tiles, where they are as many as an H100 has processors.
// CHECK-LABEL: @large
// CHECK-DAG: arith.constant 16 : index
// CHECK: "flow.dispatch"({{.*}}) {entry_points = [@pcp_product_f32_128_NT_ptx::@pcp_product_f32_128_NT]
func.func @large(%x: tensor<2048x256xf32>, %w: tensor<2048x256xf32>) -> tensor<2048x2048xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<2048x256xf32>, tensor<2048x256xf32>) -> tensor<2048x2048xf32>
  return %0 : tensor<2048x2048xf32>
}

// A deep product has its depth cut, so that all processors have work.
// CHECK-LABEL: @deep
// CHECK: %[[Y:.*]] = "flow.dispatch"({{.*}}) {entry_points = [@pcp_product_f32_64_TN_ptx::@pcp_product_f32_64_TN]{{.*}} -> tensor<16x256x256xf32>
// CHECK: stablehlo.reduce(%[[Y]] init: {{.*}}) applies stablehlo.add across dimensions = [0]
func.func @deep(%x: tensor<2048x256xf32>, %y: tensor<2048x256xf32>) -> tensor<256x256xf32> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<2048x256xf32>, tensor<2048x256xf32>) -> tensor<256x256xf32>
  return %0 : tensor<256x256xf32>
}

// Matrices of bf16 whose sums are f32; batches.
// CHECK-LABEL: @narrow
// CHECK: entry_points = [@pcp_product_bf16_64_NN_ptx::@pcp_product_bf16_64_NN]
// CHECK-SAME: -> tensor<4x128x64xf32>
func.func @narrow(%x: tensor<4x128x96xbf16>, %y: tensor<4x96x64xbf16>) -> tensor<4x128x64xf32> {
  %0 = stablehlo.dot_general %x, %y, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x128x96xbf16>, tensor<4x96x64xbf16>) -> tensor<4x128x64xf32>
  return %0 : tensor<4x128x64xf32>
}

// TF32 where the program asks for it.
// CHECK-LABEL: @asked
// CHECK: entry_points = [@pcp_product_tf32_64_NN_ptx::@pcp_product_tf32_64_NN]
func.func @asked(%x: tensor<128x96xf32>, %y: tensor<96x64xf32>) -> tensor<128x64xf32> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = tf32, rhs_precision_type = tf32, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<128x96xf32>, tensor<96x64xf32>) -> tensor<128x64xf32>
  return %0 : tensor<128x64xf32>
}

// Small ones, vectors, integers and other forms stay.
// CHECK-LABEL: @others
// CHECK-NOT: flow.dispatch
// CHECK: return
func.func @others(%x: tensor<16x32xf32>, %y: tensor<32x16xf32>, %v: tensor<1x4096xf32>, %w: tensor<4096x4096xf32>, %i: tensor<128x128xi32>, %t: tensor<128x128xf32>) -> (tensor<16x16xf32>, tensor<1x4096xf32>, tensor<128x128xi32>, tensor<128x128xf32>) {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<16x32xf32>, tensor<32x16xf32>) -> tensor<16x16xf32>
  %1 = stablehlo.dot_general %v, %w, contracting_dims = [1] x [0] : (tensor<1x4096xf32>, tensor<4096x4096xf32>) -> tensor<1x4096xf32>
  %2 = stablehlo.dot_general %i, %i, contracting_dims = [1] x [0] : (tensor<128x128xi32>, tensor<128x128xi32>) -> tensor<128x128xi32>
  %3 = stablehlo.dot_general %t, %t, contracting_dims = [0] x [1] : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
  return %0, %1, %2, %3 : tensor<16x16xf32>, tensor<1x4096xf32>, tensor<128x128xi32>, tensor<128x128xf32>
}
