// RUN: pcp-opt %s --pcp-grad=func= --split-input-file --verify-diagnostics

// expected-error@below {{@f: wrt=3, but it has 1 inputs}}
func.func @f(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
"pcp.grad"() {fn = @f, sym_name = "g", wrt = [3]} : () -> ()

// -----

// expected-error@below {{pcp.grad: the module has no function @h}}
"pcp.grad"() {fn = @h, sym_name = "g", wrt = []} : () -> ()
