// RUN: pcp-opt %s --pcp-infer-roles --split-input-file | filecheck %s

// State, frozen, key; what each result is follows from its name and shape.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %arg0: tensor<f32> {pcp.init = "zeros", pcp.name = "w", pcp.role = "param"}
// CHECK-SAME: %arg1: tensor<4xf32> {pcp.name = "base", pcp.role = "frozen"}
// CHECK-SAME: %arg2: tensor<4xf32> {pcp.init = "ones", pcp.name = "var", pcp.role = "state"}
// CHECK-SAME: %arg3: tensor<i64> {pcp.average = "sum", pcp.init = "zeros", pcp.name = "count", pcp.role = "state"}
// CHECK-SAME: %arg4: tensor<8xf32> {pcp.init = "given", pcp.name = "table", pcp.role = "state"}
// CHECK-SAME: %arg5: tensor<2xui32> {pcp.name = "arg5", pcp.role = "key"}
// CHECK-SAME: %arg6: tensor<4xf32> {pcp.name = "arg6", pcp.role = "data"}
// CHECK-SAME: -> (tensor<f32> {pcp.name = "loss", pcp.role = "loss"}
// CHECK-SAME: tensor<i64> {pcp.name = "count", pcp.role = "state"}
// CHECK-SAME: tensor<f32> {pcp.name = "accuracy", pcp.role = "metric"}
// CHECK-SAME: tensor<4xf32> {pcp.name = "var", pcp.role = "state"}
// CHECK-SAME: tensor<i64> {pcp.name = "metric4", pcp.role = "metric"}
// CHECK-SAME: tensor<8xf32> {pcp.name = "table", pcp.role = "state"}
// CHECK-SAME: tensor<4xf32> {pcp.name = "result6", pcp.role = "result"})
func.func @main(
    %w: tensor<f32> {pcp.name = "w", pcp.role = "param"},
    %b: tensor<4xf32> {pcp.name = "base", pcp.role = "frozen"},
    %v: tensor<4xf32> {pcp.init = "ones", pcp.name = "var", pcp.role = "state"},
    %n: tensor<i64> {pcp.average = "sum", pcp.name = "count", pcp.role = "state"},
    %t: tensor<8xf32> {pcp.init = "given", pcp.name = "table", pcp.role = "state"},
    %k: tensor<2xui32> {pcp.role = "key"}, %x: tensor<4xf32>)
    -> (tensor<f32>, tensor<i64> {pcp.name = "count"}, tensor<f32> {pcp.name = "accuracy"},
        tensor<4xf32> {pcp.name = "var"}, tensor<i64>, tensor<8xf32> {pcp.name = "table"}, tensor<4xf32>) {
  return %w, %n, %w, %v, %n, %t, %x : tensor<f32>, tensor<i64>, tensor<f32>, tensor<4xf32>, tensor<i64>, tensor<8xf32>, tensor<4xf32>
}
