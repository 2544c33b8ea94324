// RUN: pcp-opt %s --pcp-lora="targets=q.weight|k.weight r=2 alpha=4 dora=true" | filecheck %s

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %arg3: tensor<2x3xf32> {{.*}}"q.lora_A.weight"
// CHECK-SAME: %arg4: tensor<4x2xf32> {{.*}}"q.lora_B.weight"
// CHECK-SAME: %arg5: tensor<4xf32> {pcp.init = "norms(1,q.weight)", pcp.name = "q.lora_magnitude_vector", pcp.role = "param"}
// CHECK-SAME: %arg8: tensor<5xf32> {pcp.init = "norms(0,k.weight)", pcp.name = "k.lora_magnitude_vector", pcp.role = "param"}
// CHECK: %[[Y:.*]] = stablehlo.dot_general %arg2, %{{.*}}, contracting_dims = [1] x [0]
// CHECK: %[[SUM:.*]] = stablehlo.add %[[Y]]
// CHECK: %[[BA:.*]] = stablehlo.dot_general %arg4, %arg3, contracting_dims = [1] x [0] {{.*}} -> tensor<4x3xf32>
// CHECK: %[[SMALL:.*]] = stablehlo.multiply %[[BA]]
// CHECK: %[[WHOLE:.*]] = stablehlo.add %arg0, %[[SMALL]]
// CHECK: %[[SQUARES:.*]] = stablehlo.multiply %[[WHOLE]], %[[WHOLE]]
// CHECK: stablehlo.reduce(%[[SQUARES]] {{.*}} across dimensions = [1]
// CHECK: %[[NORMS:.*]] = stablehlo.sqrt
// CHECK: %[[FIXED:.*]] = "pcp.stop_gradient"(%[[NORMS]])
// CHECK: %[[SCALE:.*]] = stablehlo.divide %arg5, %[[FIXED]]
// CHECK: %[[WIDE:.*]] = stablehlo.broadcast_in_dim %[[SCALE]], dims = [1]
// CHECK: stablehlo.multiply %[[SUM]], %[[WIDE]]
// CHECK: stablehlo.dot_general %arg6, %arg7, contracting_dims = [0] x [1] {{.*}} -> tensor<4x5xf32>
// CHECK: across dimensions = [0]

func.func @main(
    %q: tensor<4x3xf32> {pcp.name = "q.weight", pcp.role = "param", pcp.init = "normal(0.02)"},
    %k: tensor<4x5xf32> {pcp.name = "k.weight", pcp.role = "param"},
    %x: tensor<7x3xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<7x5xf32> {
  %t = stablehlo.transpose %q, dims = [1, 0] : (tensor<4x3xf32>) -> tensor<3x4xf32>
  %0 = stablehlo.dot_general %x, %t, contracting_dims = [1] x [0] : (tensor<7x3xf32>, tensor<3x4xf32>) -> tensor<7x4xf32>
  %1 = stablehlo.dot_general %0, %k, contracting_dims = [1] x [0] : (tensor<7x4xf32>, tensor<4x5xf32>) -> tensor<7x5xf32>
  return %1 : tensor<7x5xf32>
}
