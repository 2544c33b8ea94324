// RUN: pcp-opt %s --pcp-kernels=set=x86-64-v4 --allow-unregistered-dialect | filecheck %s

// CHECK: "stream.executable"() <{sym_name = "pcp_kernels_attention", sym_visibility = "private"}>
// CHECK: hal.executable.objects = #hal.executable.objects<{#hal.executable.target<"llvm-cpu", "embedded-elf-x86_64"> = [#hal.executable.object<{path = "pcp-{{[0-9a-f]+}}-attention-x86-64-v4.o"}>]}>

// Slices of one product are read in place: the numbers behind the shape are where a
// sequence, a head and a row of each begin. The mask becomes how far ahead a row sees;
// there is nothing else for each pair.
// CHECK-LABEL: @causal
// CHECK-NOT: x64x64x
// CHECK: %[[Y:.*]]:3 = "flow.dispatch"(%arg0, %arg0, %arg0, %arg0) {entry_points = [@pcp_kernels_attention::@pcp_attention_3_2_64_64_16_0_{{[0-9]+}}_{{[0-9]+}}_0_0_0_6144_16_96_32_0_6144_16_96_64_0_6144_16_96_0_0_0_0_0_0_0_6144_2048_16_32_6]
// CHECK-SAME: -> (tensor<1x3x64x2x16xf32>, tensor<1x3x2x64xf32>, tensor<1x3x2x64xf32>)
// CHECK-DAG: stablehlo.reshape %[[Y]]#1 : (tensor<1x3x2x64xf32>) -> tensor<3x2x64xf32>
// CHECK-DAG: stablehlo.transpose %{{.*}}, dims = [0, 2, 1, 3] : (tensor<3x64x2x16xf32>) -> tensor<3x2x64x16xf32>
func.func @causal(%x: tensor<3x64x96xf32>) -> (tensor<3x2x64x16xf32>, tensor<3x2x64xf32>) {
  %q0 = stablehlo.slice %x [0:3, 0:64, 0:32] : (tensor<3x64x96xf32>) -> tensor<3x64x32xf32>
  %k0 = stablehlo.slice %x [0:3, 0:64, 32:64] : (tensor<3x64x96xf32>) -> tensor<3x64x32xf32>
  %v0 = stablehlo.slice %x [0:3, 0:64, 64:96] : (tensor<3x64x96xf32>) -> tensor<3x64x32xf32>
  %q = stablehlo.reshape %q0 : (tensor<3x64x32xf32>) -> tensor<3x64x2x16xf32>
  %k = stablehlo.reshape %k0 : (tensor<3x64x32xf32>) -> tensor<3x64x2x16xf32>
  %v = stablehlo.reshape %v0 : (tensor<3x64x32xf32>) -> tensor<3x64x2x16xf32>
  %s = stablehlo.dot_general %q, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<3x64x2x16xf32>, tensor<3x64x2x16xf32>) -> tensor<3x2x64x64xf32>
  %quarter = stablehlo.constant dense<0.25> : tensor<3x2x64x64xf32>
  %scaled = stablehlo.multiply %s, %quarter : tensor<3x2x64x64xf32>
  %rows = stablehlo.iota dim = 0 : tensor<64x64xi32>
  %columns = stablehlo.iota dim = 1 : tensor<64x64xi32>
  %seen = stablehlo.compare GE, %rows, %columns : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi1>
  %mask = stablehlo.broadcast_in_dim %seen, dims = [2, 3] : (tensor<64x64xi1>) -> tensor<3x2x64x64xi1>
  %hidden = stablehlo.constant dense<0xFF800000> : tensor<3x2x64x64xf32>
  %scores = stablehlo.select %mask, %scaled, %hidden : tensor<3x2x64x64xi1>, tensor<3x2x64x64xf32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%scores init: %low) applies stablehlo.maximum across dimensions = [3] : (tensor<3x2x64x64xf32>, tensor<f32>) -> tensor<3x2x64xf32>
  %m1 = stablehlo.broadcast_in_dim %m, dims = [0, 1, 2] : (tensor<3x2x64xf32>) -> tensor<3x2x64x64xf32>
  %less = stablehlo.subtract %scores, %m1 : tensor<3x2x64x64xf32>
  %e = stablehlo.exponential %less : tensor<3x2x64x64xf32>
  %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [3] : (tensor<3x2x64x64xf32>, tensor<f32>) -> tensor<3x2x64xf32>
  %y = stablehlo.dot_general %e, %v, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1] : (tensor<3x2x64x64xf32>, tensor<3x64x2x16xf32>) -> tensor<3x2x64x16xf32>
  return %y, %l : tensor<3x2x64x16xf32>, tensor<3x2x64xf32>
}

// Keys that are hidden by data become a number for each, which stands in its scores'
// place; two heads of q share one of k and v: a step of theirs is 0.
// CHECK-LABEL: @padded
// CHECK-NOT: x40x50x
// CHECK: %[[P:.*]] = stablehlo.select %{{.*}} : tensor<3x50xi1>, tensor<3x50xf32>
// CHECK: "flow.dispatch"(%arg0, %arg1, %arg2, %[[P]]) {entry_points = [@pcp_kernels_attention::@pcp_attention_3_2_40_50_32_50_1065353216_1065353216_2_0_0_2560_32_64_0_0_1600_0_32_0_0_1600_0_32_0_0_50_0_0_1_
func.func @padded(%q: tensor<3x40x2x32xf32>, %k: tensor<3x50x32xf32>, %v: tensor<3x50x32xf32>, %seen: tensor<3x50xi1>) -> (tensor<3x2x40x32xf32>, tensor<3x2x40xf32>) {
  %k2 = stablehlo.broadcast_in_dim %k, dims = [0, 2, 3] : (tensor<3x50x32xf32>) -> tensor<3x2x50x32xf32>
  %v2 = stablehlo.broadcast_in_dim %v, dims = [0, 2, 3] : (tensor<3x50x32xf32>) -> tensor<3x2x50x32xf32>
  %s = stablehlo.dot_general %q, %k2, batching_dims = [0, 2] x [0, 1], contracting_dims = [3] x [3] : (tensor<3x40x2x32xf32>, tensor<3x2x50x32xf32>) -> tensor<3x2x40x50xf32>
  %mask = stablehlo.broadcast_in_dim %seen, dims = [0, 3] : (tensor<3x50xi1>) -> tensor<3x2x40x50xi1>
  %hidden = stablehlo.constant dense<-1.0e+09> : tensor<3x2x40x50xf32>
  %scores = stablehlo.select %mask, %s, %hidden : tensor<3x2x40x50xi1>, tensor<3x2x40x50xf32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%scores init: %low) applies stablehlo.maximum across dimensions = [3] : (tensor<3x2x40x50xf32>, tensor<f32>) -> tensor<3x2x40xf32>
  %m1 = stablehlo.broadcast_in_dim %m, dims = [0, 1, 2] : (tensor<3x2x40xf32>) -> tensor<3x2x40x50xf32>
  %less = stablehlo.subtract %scores, %m1 : tensor<3x2x40x50xf32>
  %e = stablehlo.exponential %less : tensor<3x2x40x50xf32>
  %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [3] : (tensor<3x2x40x50xf32>, tensor<f32>) -> tensor<3x2x40xf32>
  %y = stablehlo.dot_general %e, %v2, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<3x2x40x50xf32>, tensor<3x2x50x32xf32>) -> tensor<3x2x40x32xf32>
  return %y, %l : tensor<3x2x40x32xf32>, tensor<3x2x40xf32>
}

// Something else reads the exponentials.
// CHECK-LABEL: @weights
// CHECK: stablehlo.exponential
// CHECK: stablehlo.dot_general
func.func @weights(%q: tensor<2x64x16xf32>, %k: tensor<2x64x16xf32>, %v: tensor<2x64x16xf32>) -> (tensor<2x64x16xf32>, tensor<2x64xf32>, tensor<2x64x64xf32>) {
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x64x16xf32>, tensor<2x64x16xf32>) -> tensor<2x64x64xf32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<2x64x64xf32>, tensor<f32>) -> tensor<2x64xf32>
  %m1 = stablehlo.broadcast_in_dim %m, dims = [0, 1] : (tensor<2x64xf32>) -> tensor<2x64x64xf32>
  %less = stablehlo.subtract %s, %m1 : tensor<2x64x64xf32>
  %e = stablehlo.exponential %less : tensor<2x64x64xf32>
  %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x64x64xf32>, tensor<f32>) -> tensor<2x64xf32>
  %y = stablehlo.dot_general %e, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x64x64xf32>, tensor<2x64x16xf32>) -> tensor<2x64x16xf32>
  return %y, %l, %e : tensor<2x64x16xf32>, tensor<2x64xf32>, tensor<2x64x64xf32>
}
